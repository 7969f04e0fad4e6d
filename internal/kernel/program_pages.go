// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ForgetProgramPages lets go of the pages of this program's file: code and constants that only its
// start needed stay mapped otherwise, which is half of them and more. What is needed again comes
// from the page cache, or from the file, as it came first.
func ForgetProgramPages() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer f.Close()
	var errs []error
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 00400000-01639000 r-xp 00000000 fe:00 1002 /usr/bin/weir-agent
		var from, to uintptr
		var access string
		line := lines.Text()
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &access); n < 3 || !strings.HasSuffix(line, " "+program) {
			continue
		}
		if strings.Contains(access, "w") { // what was written there is nowhere else
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			errs = append(errs, fmt.Errorf("pages of %s: %w", line, errno))
		}
	}
	return errors.Join(errs...)
}
