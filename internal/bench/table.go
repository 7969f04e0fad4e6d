// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table is text in columns. Cells that begin with a digit, a sign or a dash are at the right edge
// of their column.
type Table struct {
	Head []string
	Rows [][]string
}

// Add appends a row; what is not a string is formatted with %v, floats with three significant
// digits or all their integer ones.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		switch v := c.(type) {
		case string:
			row[i] = v
		case float64:
			row[i] = Number(v)
		default:
			row[i] = fmt.Sprint(v)
		}
	}
	t.Rows = append(t.Rows, row)
}

// Number formats a measured value with three significant digits, or all its integer ones.
func Number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1 || v <= -1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// Write prints the table, with Markdown's bars when markdown is set.
func (t *Table) Write(w io.Writer, markdown bool) error {
	width := make([]int, len(t.Head))
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		for i := range min(len(row), len(width)) {
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
		}
	}
	for n, row := range append([][]string{t.Head}, t.Rows...) {
		if _, err := fmt.Fprintln(w, t.line(row, width, markdown)); err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		rule := make([]string, len(width))
		for i, c := range width {
			rule[i] = strings.Repeat("-", c)
		}
		if _, err := fmt.Fprintln(w, t.line(rule, width, markdown)); err != nil {
			return err
		}
	}
	return nil
}

func (t *Table) line(row []string, width []int, markdown bool) string {
	cells := make([]string, len(width))
	for i, c := range width {
		var text string
		if i < len(row) {
			text = row[i]
		}
		pad := strings.Repeat(" ", c-utf8.RuneCountInString(text))
		if text != "" && strings.ContainsRune("0123456789-+–", []rune(text)[0]) {
			cells[i] = pad + text
		} else {
			cells[i] = text + pad
		}
	}
	if markdown {
		return "| " + strings.Join(cells, " | ") + " |"
	}
	return strings.TrimRight(strings.Join(cells, "  "), " ")
}
