// SPDX-License-Identifier: Apache-2.0

// Command routing runs the tests of BGP, IP in IP and WireGuard, and writes what of all that every
// mode has to do works, and what the tests have measured:
//
//	go run ./test/routing [-out out/routing.json] [-doc FILE] [-list]
//
// It fails when a test fails. What has no test, or whose test was skipped, counts as not run, but
// for what make kernels plays on an emulated kernel: that counts as emulated, not as passed. It
// needs root, and BIRD, FRR and OpenBGPD, which make setup brings, those of a newer Debian in the
// folder that WEIR_ROUTERS names, to which hack/routers.sh brings them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/test/cells"
)

func main() {
	out := flag.String("out", "out/routing.json", "where to write the results")
	doc := flag.String("doc", "", "Markdown file whose tables, after the mark of this program, are written anew")
	list := flag.Bool("list", false, "print what there is, and run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *list {
		cells.List(asks())
		return
	}
	if err := run(ctx, *out, *doc); err != nil {
		fmt.Fprintln(os.Stderr, "routing:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, doc string) error {
	scratch, err := os.MkdirTemp("", "weir-routing-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	figures := filepath.Join(scratch, "figures")
	all, results := asks(), map[string]string{}
	ran := cells.Runner{Figures: figures}.Run(ctx, all, results)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r, failed := cells.New(ctx, all, results)
	errs := []error{ran, failed, r.ReadFigures(figures)}
	if err := bench.WriteJSON(out, r); err != nil {
		return err
	}
	if doc != "" {
		errs = append(errs, r.WriteDoc(doc, "test/routing"))
	}
	fmt.Printf("routing: %d passed, %d failed, %d not run, %d are played by make kernels; written to %s\n", r.Passed, r.Failed, r.NotRun, r.Emulated, out)
	return errors.Join(errs...)
}
