// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// LacksNFTables reports whether a kernel's answer to a question about tables says that it has no
// nftables: no netlink family, or no such part of it (nfnetlink_rcv_msg).
func LacksNFTables(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// NFT runs the nft program on a transaction, for at most patience. It is not broken off with ctx: a
// transaction half awaited may be in force or not.
func NFT(ctx context.Context, text string, patience time.Duration) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer stop()
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) > 0 {
		err = errors.Join(err, errors.New(strings.TrimSpace(string(out))))
	}
	return err
}
