// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/model"
)

// field is one row of the table.
type field struct {
	name string // in the resource
	env  string // after FELIX_
	def  string // default, as text
	// allow says what is allowed, for people; empty = derived from the default.
	allow string
	// same lists further texts that mean what is in force anyway.
	same []string
	// lacks says, of a field without effect, what is not protected although the field asks for it:
	// that is a problem.
	lacks string
	// never says, of a field about something that Weir does not have, what that is.
	never string
	// apply puts a value in force, or says why it is none. Notes are about parts that have no
	// effect. nil = the field has no effect yet.
	apply func(e *Effective, text string) (notes []string, err error)
}

func (f *field) isDefault(text string) bool {
	if strings.EqualFold(text, f.def) {
		return true
	}
	for _, s := range f.same {
		if strings.EqualFold(text, s) {
			return true
		}
	}
	a, err := time.ParseDuration(f.def)
	b, err2 := duration(text)
	return err == nil && err2 == nil && a == b
}

func (f *field) allowed() string {
	if f.allow != "" {
		return f.allow
	}
	return strconv.Quote(f.def)
}

// textOf writes a JSON value as one would in the environment; "" for what counts as not set.
func textOf(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(raw)
}

// boolean is a field of a truth value.
func boolean(name, env string, def bool, set func(*Effective, bool)) field {
	return field{name: name, env: env, def: strconv.FormatBool(def), allow: "true or false",
		apply: func(e *Effective, text string) ([]string, error) {
			switch strings.ToLower(text) {
			case "true", "1", "yes", "y", "t":
				set(e, true)
			case "false", "0", "no", "n", "f":
				set(e, false)
			default:
				return nil, fmt.Errorf("is neither true nor false")
			}
			return nil, nil
		}}
}

// toggle is a field of a truth value that may be unset; set returns what is to be said of it.
func toggle(name, env string, set func(*Effective, model.Toggle) []string) field {
	return field{name: name, env: env, allow: "true, false or nothing",
		apply: func(e *Effective, text string) ([]string, error) {
			switch strings.ToLower(text) {
			case "true", "1", "yes", "y", "t":
				return set(e, model.On), nil
			case "false", "0", "no", "n", "f":
				return set(e, model.Off), nil
			case "":
				return set(e, model.Unset), nil
			}
			return nil, fmt.Errorf("is neither true nor false")
		}}
}

// integer is a field of a number lo..hi, or one of extra.
func integer(name, env string, def, lo, hi int, set func(*Effective, int), extra ...int) field {
	allow := fmt.Sprintf("a number %d..%d", lo, hi)
	for _, x := range extra {
		allow += fmt.Sprintf(" or %d", x)
	}
	return field{name: name, env: env, def: strconv.Itoa(def), allow: allow,
		apply: func(e *Effective, text string) ([]string, error) {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				return nil, fmt.Errorf("is not a whole number")
			}
			ok := n >= lo && n <= hi
			for _, x := range extra {
				ok = ok || n == x
			}
			if !ok {
				return nil, fmt.Errorf("is out of range, which is %s", strings.TrimPrefix(allow, "a number "))
			}
			set(e, n)
			return nil, nil
		}}
}

// choice is a field of one of some words, in any case.
func choice(name, env, def string, values []string, set func(*Effective, string)) field {
	allow := "one of " + strings.Join(values, ", ")
	return field{name: name, env: env, def: def, allow: allow,
		apply: func(e *Effective, text string) ([]string, error) {
			for _, v := range values {
				if strings.EqualFold(v, text) {
					set(e, v)
					return nil, nil
				}
			}
			return nil, fmt.Errorf("is not %s", allow)
		}}
}

// text is a field of a text that matches a pattern; what says in words which.
func text(name, env, def, pattern, what string, set func(*Effective, string)) field {
	re := regexp.MustCompile(pattern)
	return field{name: name, env: env, def: def, allow: what,
		apply: func(e *Effective, text string) ([]string, error) {
			if !re.MatchString(text) {
				return nil, fmt.Errorf("is not %s", what)
			}
			set(e, text)
			return nil, nil
		}}
}

// pattern is a field of a regular expression.
func pattern(name, env, def string, set func(*Effective, string)) field {
	return field{name: name, env: env, def: def, allow: "a regular expression (RE2)",
		apply: func(e *Effective, text string) ([]string, error) {
			if _, err := regexp.Compile(text); err != nil {
				return nil, fmt.Errorf("is not a regular expression: %v", err)
			}
			set(e, text)
			return nil, nil
		}}
}

// portRange is a field of "first:last".
func portRange(name, env, def string, set func(e *Effective, first, last uint16)) field {
	return field{name: name, env: env, def: def, allow: "two ports first:last within 1024..65535",
		apply: func(e *Effective, text string) ([]string, error) {
			a, b, ok := strings.Cut(text, ":")
			if !ok {
				b = a
			}
			first, err1 := strconv.ParseUint(a, 10, 16)
			last, err2 := strconv.ParseUint(b, 10, 16)
			if err1 != nil || err2 != nil {
				return nil, fmt.Errorf("is not two port numbers first:last")
			}
			if first < 1024 || last < first {
				return nil, fmt.Errorf("is out of range, which is 1024..65535 with the first not above the last")
			}
			set(e, uint16(first), uint16(last))
			return nil, nil
		}}
}

// maxCIDRs bounds a list of CIDRs: each is an entry of a map.
const maxCIDRs = 10000

// cidrs is a field of a list of CIDRs or addresses: as JSON in the resource, separated by commas in
// the environment. The list is sorted, and has each prefix once.
func cidrs(name, env string, set func(*Effective, []netip.Prefix)) field {
	return field{name: name, env: env, def: "", same: []string{"[]"}, allow: "a list of CIDRs such as 10.0.0.0/8",
		apply: func(e *Effective, text string) ([]string, error) {
			var words []string
			if strings.HasPrefix(strings.TrimSpace(text), "[") {
				if err := json.Unmarshal([]byte(text), &words); err != nil {
					return nil, fmt.Errorf("is not a list of CIDRs")
				}
			} else {
				words = strings.Split(text, ",")
			}
			if len(words) > maxCIDRs {
				return nil, fmt.Errorf("has %d CIDRs, and %d are the most", len(words), maxCIDRs)
			}
			var out []netip.Prefix
			for _, w := range words {
				p, err := cidr(strings.TrimSpace(w))
				if err != nil {
					return nil, err
				}
				out = append(out, p)
			}
			slices.SortFunc(out, netip.Prefix.Compare)
			set(e, slices.Compact(out))
			return nil, nil
		}}
}

// cidr reads a CIDR, or an address as one with all its bits.
func cidr(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("has %q, which is not a CIDR such as 10.0.0.0/8", text)
	}
	return p.Masked(), nil
}

// unsupported is a field that has no effect yet; same lists values in addition to the default that
// mean what is in force anyway.
func unsupported(name, env, def string, same ...string) field {
	return field{name: name, env: env, def: def, same: same}
}

// ineffective is a field that asks for some protection and has no effect: set to something else
// than its default it is a problem.
func ineffective(name, env, def, lacks string, same ...string) field {
	return field{name: name, env: env, def: def, same: same, lacks: lacks}
}

// verbatim is a field that is taken as it is written, and read by whoever uses it.
func verbatim(name, env, def string, set func(*Effective, string)) field {
	return field{name: name, env: env, def: def, apply: func(e *Effective, text string) ([]string, error) {
		set(e, text)
		return nil, nil
	}}
}

// duration parses "20s", "1h", and a plain number as seconds.
func duration(text string) (time.Duration, error) {
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		return time.Duration(n * float64(time.Second)), nil
	}
	return time.ParseDuration(text)
}
