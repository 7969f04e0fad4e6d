// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"strconv"
	"strings"
	"text/template"

	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/noeffect"
)

// noEffect are the functions of 27-no-effect.yaml.tmpl: the lists of what has no effect, in CEL.
var noEffect = template.FuncMap{
	// annotations returns the entries of a map from name to reason.
	"annotations": func(kind string) string {
		var out []string
		for _, a := range noeffect.Annotations {
			if a.Kind == kind {
				out = append(out, celText(a.Name)+": "+celText(a.Why))
			}
		}
		return strings.Join(out, ", ")
	},
	"settingsInForce": func() string {
		var out []string
		for _, f := range config.All() {
			if f.Name != "" && f.InForce() {
				out = append(out, celText(f.Name))
			}
		}
		return strings.Join(out, ", ")
	},
	// settingsWithoutEffect returns the entries of a map from name to the values of which nothing
	// is said, in lower case.
	"settingsWithoutEffect": func() string {
		var out []string
		for _, f := range config.All() {
			if f.Name == "" || f.InForce() {
				continue
			}
			values := []string{celText(strings.ToLower(f.Default))}
			for _, s := range f.Same {
				values = append(values, celText(strings.ToLower(s)))
			}
			out = append(out, celText(f.Name)+": ["+strings.Join(values, ", ")+"]")
		}
		return strings.Join(out, ", ")
	},
	"fields": func(kind string) []fieldWarning {
		var out []fieldWarning
		for _, f := range noeffect.Fields {
			if f.Kind == kind {
				out = append(out, warningOf(f))
			}
		}
		return out
	},
}

// fieldWarning is what holds while a field is not set, or says what is so anyway, and what is said
// otherwise; both as YAML.
type fieldWarning struct{ CEL, Message string }

func warningOf(f noeffect.Field) fieldWarning {
	at, not := "object", []string(nil)
	for _, name := range f.Path {
		at += "." + name
		not = append(not, "!has("+at+")")
	}
	values := make([]string, len(f.Default))
	for i, v := range f.Default {
		values[i] = celText(v)
	}
	cel := fmt.Sprintf("%s || string(%s) in [%s]", strings.Join(not, " || "), at, strings.Join(values, ", "))
	return fieldWarning{strconv.Quote(cel), strconv.Quote(f.Name() + " has no effect: " + f.Why)}
}

// celText is a text in CEL, within a string of YAML in double quotes.
func celText(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\\\`, `'`, `\\'`, `"`, `\"`).Replace(s) + "'"
}
