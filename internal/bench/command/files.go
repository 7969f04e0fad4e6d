// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-net/weir/internal/bench/report"
	"github.com/weir-net/weir/internal/bench/result"
	"github.com/weir-net/weir/internal/exitcode"
	"github.com/weir-net/weir/internal/terminal"
)

// exitWorse is the exit code of a comparison that found what it was asked to look for.
const exitWorse = 3

func newCompare() *cobra.Command {
	var below float64
	var strict, all, asJSON bool
	var chosen []string
	c := &cobra.Command{
		Use:   "compare A.json B.json",
		Short: "Compare two runs: B as a multiple of A, with intervals",
		Long: "Compare two runs: B as a multiple of A, with intervals. Files of knb (its JSON, YAML or data file) can be compared too.\n" +
			"With --fail-below 0.95 the exit code is 3 when the main metric of a row is worse in B than in A by more than 5 %, with 95 % confidence\n" +
			"(the whole interval is beyond it), or is not there in B.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if below < 0 || below > 1 {
				return fmt.Errorf("--fail-below %v: want 0 to 1, such as 0.95", below)
			}
			metrics, err := metricsOf(chosen)
			if err != nil {
				return err
			}
			var files [2]*result.File
			for i, name := range args {
				if files[i], err = result.Read(name); err != nil {
					return err
				}
			}
			cmp, err := result.CompareFiles(files[0], files[1])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				e := json.NewEncoder(out)
				e.SetIndent("", " ")
				err = e.Encode(cmp)
			} else {
				err = cmp.Show(terminal.Text{Writer: out}, all)
			}
			if err != nil || below == 0 {
				return err
			}
			return reportWorse(terminal.Text{Writer: cmd.ErrOrStderr()}, cmp.Below(below, strict, metrics...), below)
		},
	}
	c.Flags().Float64Var(&below, "fail-below", 0, "exit code 3 if something is certainly worse than this fraction of A, such as 0.95")
	c.Flags().BoolVar(&strict, "strict", false, "with --fail-below: the estimate alone decides, whatever its interval")
	c.Flags().StringSliceVar(&chosen, "metrics", nil, "with --fail-below: use these instead of each row's main metric: "+comparedMetrics())
	c.Flags().BoolVar(&all, "all", false, "show every metric")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// reportWorse prints what is worse; any of it ends the program with a code of its own.
func reportWorse(w io.Writer, worse []result.Difference, below float64) error {
	for _, d := range worse {
		if d.Failed {
			fmt.Fprintf(w, "%s, %s: %s\n", d.Row, d.Metric, d.Note)
			continue
		}
		fmt.Fprintf(w, "%s, %s: %.3f of the first run's, less than %v\n", d.Row, d.Metric, d.Good, below)
	}
	if len(worse) > 0 {
		return &exitcode.Error{Code: exitWorse}
	}
	return nil
}

func metricsOf(names []string) ([]result.Metric, error) {
	var out []result.Metric
	for _, name := range names {
		m := result.Metric(name)
		if !m.Compared() {
			return nil, fmt.Errorf("--metrics %q: want some of %s", name, comparedMetrics())
		}
		out = append(out, m)
	}
	return out, nil
}

// comparedMetrics names the metrics that a comparison is about.
func comparedMetrics() string {
	var out []string
	for _, m := range result.Metrics {
		if m.Compared() {
			out = append(out, string(m))
		}
	}
	return strings.Join(out, ", ")
}

func newReport() *cobra.Command {
	var page, plots, table, data string
	c := &cobra.Command{
		Use:   "report FILE…",
		Short: "Make a page of one run or several side by side; plots, CSV and JSON",
		Long: "Make a page of one run or several side by side, with all pictures in it. It loads nothing from a network.\n" +
			"Files of knb (its JSON, YAML or data file) are read too.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var files []*result.File
			for _, name := range args {
				f, err := result.Read(name)
				if err != nil {
					return err
				}
				files = append(files, f)
			}
			figures, err := report.Figures(files)
			if err != nil {
				return err
			}
			if plots != "" {
				if err := report.Save(figures, plots); err != nil {
					return err
				}
			}
			write := func(path string, write func(io.Writer) error) error {
				if path == "" {
					return nil
				}
				if path == "-" {
					return write(cmd.OutOrStdout())
				}
				f, err := os.Create(path)
				if err != nil {
					return fmt.Errorf("writing a report: %w", err)
				}
				return errors.Join(write(f), f.Close())
			}
			return errors.Join(
				write(page, func(w io.Writer) error { return report.HTML(w, files, figures) }),
				write(table, func(w io.Writer) error { return report.CSV(w, files) }),
				write(data, func(w io.Writer) error { return json.NewEncoder(w).Encode(files) }),
			)
		},
	}
	f := c.Flags()
	f.StringVar(&page, "html", "weir-bench.html", "`file` for the page; - = the standard output, empty = none")
	f.StringVar(&plots, "plots", "", "`folder` for the plots, as SVG and PNG")
	f.StringVar(&table, "csv", "", "`file` for all figures as CSV; - = the standard output")
	f.StringVar(&data, "json", "", "`file` for all runs as one JSON list; - = the standard output")
	return c
}
