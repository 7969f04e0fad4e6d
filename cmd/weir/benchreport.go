// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	benchreport "github.com/weir-net/weir/internal/bench/report"
	"github.com/weir-net/weir/internal/bench/result"
)

func newBenchReport() *cobra.Command {
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
			figures, err := benchreport.Figures(files)
			if err != nil {
				return err
			}
			if plots != "" {
				if err := benchreport.Save(figures, plots); err != nil {
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
				write(page, func(w io.Writer) error { return benchreport.HTML(w, files, figures) }),
				write(table, func(w io.Writer) error { return benchreport.CSV(w, files) }),
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
