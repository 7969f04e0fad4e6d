// SPDX-License-Identifier: Apache-2.0

package nfteval

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// meta reads what a packet has apart from its bytes, or sets it (enum nft_meta_keys).
func meta(w *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const dreg, key, sreg = 1, 2, 3
	k := number(e.attrs[key])
	if from, ok := e.attrs[sreg]; ok {
		v, err := regs.get32(from)
		switch k {
		case unix.NFT_META_MARK:
			w.Mark = v
		case unix.NFT_META_PRIORITY:
			w.Priority = v
		default:
			return on, fmt.Errorf("setting %d is not known", k)
		}
		return on, err
	}
	to := e.attrs[dreg]
	device := func(d Device, name bool) (verdict, error) {
		if name {
			b := make([]byte, unix.IFNAMSIZ)
			copy(b, d.Name)
			return on, regs.set(to, b)
		}
		return on, regs.set32(to, uint32(d.Index))
	}
	switch k {
	case unix.NFT_META_MARK:
		return on, regs.set32(to, w.Mark)
	case unix.NFT_META_PRIORITY:
		return on, regs.set32(to, w.Priority)
	case unix.NFT_META_IIF:
		return device(w.In, false)
	case unix.NFT_META_IIFNAME:
		return device(w.In, true)
	case unix.NFT_META_OIF:
		return device(w.Out, false)
	case unix.NFT_META_OIFNAME:
		return device(w.Out, true)
	case unix.NFT_META_IIFTYPE:
		if w.In.Index == 0 {
			return no, nil
		}
		return on, regs.set(to, []byte{byte(w.In.Type), byte(w.In.Type >> 8)})
	case unix.NFT_META_NFPROTO:
		return on, regs.set(to, []byte{w.Table.Family})
	case unix.NFT_META_L4PROTO:
		return on, regs.set(to, []byte{w.Proto})
	}
	return on, fmt.Errorf("key %d is not known", k)
}

// conntrack reads what connection tracking knows, or sets the mark (enum nft_ct_keys).
func conntrack(w *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const dreg, key, direction, sreg = 1, 2, 3, 4
	k, f := number(e.attrs[key]), &w.Flow
	if from, ok := e.attrs[sreg]; ok {
		v, err := regs.get32(from)
		if k != unix.NFT_CT_MARK {
			return on, fmt.Errorf("setting %d is not known", k)
		}
		f.Mark = v
		return on, err
	}
	to, t := e.attrs[dreg], f.Original
	if number(e.attrs[direction]) == 1 {
		t = f.Reply
	}
	if f.State == StateInvalid && k != unix.NFT_CT_STATE { // it has no flow
		return no, nil
	}
	switch k {
	case unix.NFT_CT_STATE:
		return on, regs.set32(to, f.State)
	case unix.NFT_CT_DIRECTION:
		back := byte(0)
		if f.IsReply {
			back = 1
		}
		return on, regs.set(to, []byte{back})
	case unix.NFT_CT_STATUS:
		return on, regs.set32(to, f.Status)
	case unix.NFT_CT_MARK:
		return on, regs.set32(to, f.Mark)
	case unix.NFT_CT_EXPIRATION:
		return on, regs.set32(to, f.Left*1000)
	case unix.NFT_CT_PROTOCOL:
		return on, regs.set(to, []byte{w.Proto})
	case unix.NFT_CT_SRC, unix.NFT_CT_SRC_IP, unix.NFT_CT_SRC_IP6:
		return on, regs.set(to, t.Src.AsSlice())
	case unix.NFT_CT_DST, unix.NFT_CT_DST_IP, unix.NFT_CT_DST_IP6:
		return on, regs.set(to, t.Dst.AsSlice())
	case unix.NFT_CT_PROTO_SRC:
		return on, regs.set(to, be16(t.SrcPort))
	case unix.NFT_CT_PROTO_DST:
		return on, regs.set(to, be16(t.DstPort))
	case unix.NFT_CT_ID:
		return no, nil // asked of flows that are remembered by it: this packet is of none
	}
	return on, fmt.Errorf("key %d is not known", k)
}
