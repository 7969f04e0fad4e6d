// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A link lives as long as its pin or somebody who holds it. Where both go, because pins are removed
// and the agent ends, its program goes with it. So behind the links of each pod's interface the
// same programs stay as clsact filters, which belong to the interface: they carry the pod's packets
// as before, by the same maps, which live as long as they do. While there is a link they see
// nothing: its verdicts are final. The map by which programs of IPv4 call those of IPv6 is emptied
// when nobody has it open or pinned, so those of IPv6 have a filter of their own before.

// backed is what stands behind the links of a site: programs of IPv4 and of IPv6.
type backed [2]ebpf.ProgramID

func OfWorkload(h Hook) bool { return h == FromWorkload || h == ToWorkload }

// Six is the same place for the program of IPv6.
func (s Site) Six() Site { return Site{s.Ifindex, Hook{Ipv6Prefix + s.Hook.Name, s.Hook.At}} }

// Backstop makes the filters behind pods' links what they should be. An interface without a clsact
// qdisc gets it with anew, one at a call.
func (a *Attachments) Backstop(anew bool) error {
	var errs []error
	for s := range a.At {
		want := backed{a.ID(s), a.Ids[s.Six().Hook.Name]}
		have, known := a.back[s]
		if !OfWorkload(s.Hook) || have == want || known && have == (backed{}) && !anew {
			continue
		}
		made := known && have == (backed{})
		if made {
			if err := netlink.QdiscAdd(ClsactQdisc(s.Ifindex)); err != nil && !errors.Is(err, unix.EEXIST) {
				errs = append(errs, fmt.Errorf("adding a clsact qdisc to interface %d: %w", s.Ifindex, err))
			}
		}
		switch err := a.putBackstop(s); {
		case err == nil:
			a.back[s] = want
		case errors.Is(err, unix.ENODEV):
		case made:
			errs = append(errs, err)
		default:
			a.back[s] = backed{} // it has no such qdisc
		}
		if made {
			break
		}
	}
	return errors.Join(errs...)
}

// putBackstop puts the programs of a site into its filters. What they took the place of goes after
// it.
func (a *Attachments) putBackstop(s Site) error {
	if err := (Filter{FilterName(s)}).put(s, a.of(s)); err != nil {
		return fmt.Errorf("adding filter %s to interface %d: %w", FilterName(s), s.Ifindex, err)
	}
	if err := removeFiltersIf(s.Ifindex, ParentOf(s), func(b *netlink.BpfFilter) bool {
		return b.Priority == priority6 && b.Protocol == unix.ETH_P_ALL && strings.HasPrefix(b.Name, "weir_")
	}); err != nil { // of a version that knew no others
		return err
	}
	six := s.Six()
	if prog := a.Prog[six.Hook.Name]; prog != nil {
		if err := (Filter{FilterName(six)}).put(six, prog); err != nil {
			return fmt.Errorf("adding filter %s to interface %d: %w", FilterName(six), s.Ifindex, err)
		}
		return nil
	}
	return removeFiltersAt(s.Ifindex, ParentOf(s), FilterName(six))
}

// dropBackstop removes the filters of a site.
func (a *Attachments) dropBackstop(s Site) error {
	delete(a.back, s)
	if !OfWorkload(s.Hook) {
		return nil
	}
	return errors.Join(removeFiltersAt(s.Ifindex, ParentOf(s), FilterName(s)), removeFiltersAt(s.Ifindex, ParentOf(s), FilterName(s.Six())))
}
