// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/bench/result"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// tableOf is one metric of all rows and files.
type tableOf struct {
	Title string
	Heads []string
	Rows  [][]string
}

// picture is a figure in the page. SVG comes from the drawing library, which escapes the texts that
// it draws.
type picture struct {
	Title string
	SVG   template.HTML
}

// HTML writes a page with everything in it.
func HTML(w io.Writer, files []*result.File, figures []Figure) error {
	data := struct {
		Files    []*result.File
		Pictures []picture
		Tables   []tableOf
		Notes    []string
	}{Files: files}
	for i := range figures {
		raw, err := figures[i].Render("svg")
		if err != nil {
			return err
		}
		// What is before the element belongs to a file of its own.
		if at := bytes.Index(raw, []byte("<svg")); at > 0 {
			raw = raw[at:]
		}
		data.Pictures = append(data.Pictures, picture{figures[i].Title, template.HTML(raw)}) //nolint:gosec // drawn here
	}
	for _, m := range result.Metrics {
		if t, ok := tableFor(m, files); ok {
			data.Tables = append(data.Tables, t)
		}
	}
	for _, f := range files {
		for _, n := range f.Notes() {
			data.Notes = append(data.Notes, f.Metadata.Name+": "+n)
		}
	}
	if err := page.Execute(w, data); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

func tableFor(m result.Metric, files []*result.File) (tableOf, bool) {
	t := tableOf{Title: strings.TrimSpace(string(m) + " " + m.Unit()), Heads: []string{"row"}}
	for _, f := range files {
		t.Heads = append(t.Heads, caption(f))
	}
	var order []string
	seen := map[string]bool{}
	for _, f := range files {
		for i := range f.Rows {
			if _, ok := f.Rows[i].Values[m]; ok && !seen[f.Rows[i].Key()] {
				seen[f.Rows[i].Key()] = true
				order = append(order, f.Rows[i].Key())
			}
		}
	}
	for _, key := range order {
		row := []string{key}
		for _, f := range files {
			cell := ""
			if r := f.Row(key); r != nil {
				if v, ok := r.Values[m]; ok {
					cell = bench.Number(v.Median)
					if len(v.All) > 1 {
						cell += fmt.Sprintf(" [%s–%s]", bench.Number(v.Low), bench.Number(v.High))
					}
					if h, ok := r.ToHost[m]; ok {
						cell += fmt.Sprintf(" (%.2f of host)", h.Median)
					}
				}
			}
			row = append(row, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	return t, len(order) > 0
}

// CSV writes a line for each metric of each row of each file.
func CSV(w io.Writer, files []*result.File) error {
	c := csv.NewWriter(w)
	if err := c.Write([]string{"run", "data_plane", "row", "services", "metric", "unit", "median", "low", "high", "confidence", "rounds", "ratio_to_host"}); err != nil {
		return fmt.Errorf("writing CSV: %w", err)
	}
	for _, f := range files {
		for i := range f.Rows {
			r := &f.Rows[i]
			for _, m := range result.Metrics {
				v, ok := r.Values[m]
				if !ok {
					continue
				}
				host := ""
				if h, ok := r.ToHost[m]; ok {
					host = number(h.Median)
				}
				err := c.Write([]string{plain(f.Metadata.Name), plain(f.Cluster.DataPlane), plain(r.ID), fmt.Sprint(r.Services), string(m), m.Unit(),
					number(v.Median), number(v.Low), number(v.High), number(v.Confidence), fmt.Sprint(len(v.All)), host})
				if err != nil {
					return fmt.Errorf("writing CSV: %w", err)
				}
			}
		}
	}
	c.Flush()
	return c.Error()
}

// plain keeps a text from being taken for a formula by a program for tables.
func plain(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}
