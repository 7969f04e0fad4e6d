// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
)

// oneLine keeps what came from objects, and from nodes, from controlling the terminal: of control
// characters (those from U+0080 to U+009F too), of marks of direction and of everything else that
// is not seen as one character, a space remains.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return ' '
	}, s)
}

// printableJSON writes a value as JSON with this indent, one line where it is empty, in which the
// same characters are escaped.
func printableJSON(v any, indent string) (string, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	var out strings.Builder
	for _, c := range text.String() {
		switch {
		case unicode.IsPrint(c) || c == '\n': // between values alone: in strings it is escaped
			out.WriteRune(c)
		case c > 0xffff:
			high, low := utf16.EncodeRune(c)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, c)
		}
	}
	return out.String(), nil
}
