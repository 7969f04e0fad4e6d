// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strings"
	"text/tabwriter"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/internal/kinds"
	"github.com/weir-net/weir/internal/terminal"
	"github.com/weir-net/weir/internal/version"
)

// asTable asks the API server to make the table, with the columns that the kind's definition has.
const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"

func (f *resourceFlags) getTable(ctx context.Context, out io.Writer, k kinds.Kind, names []string) error {
	cfg, err := client.LoadConfig(f.kubeconfig)
	if err != nil {
		return err
	}
	cfg = client.Tune(cfg, "weir/"+version.Version)
	gv := k.Resource.GroupVersion()
	cfg.APIPath, cfg.GroupVersion, cfg.NegotiatedSerializer = "/apis", &gv, scheme.Codecs.WithoutConversion()
	api, err := rest.RESTClientFor(cfg)
	if err != nil {
		return fmt.Errorf("prepare the client of %s: %w", cfg.Host, err)
	}
	segments := []string{"/apis", k.Resource.Group, k.Resource.Version}
	if k.Namespaced && !f.all {
		segments = append(segments, "namespaces", f.namespace)
	}
	segments = append(append(segments, k.Resource.Resource), names...)
	raw, err := api.Get().AbsPath(path.Join(segments...)).SetHeader("Accept", asTable).Do(ctx).Raw()
	if err != nil {
		return explain("get", k.Name, strings.Join(names, " "), err)
	}
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil {
		return fmt.Errorf("read the table of %s: %w", k.Name, err)
	}
	if len(table.Rows) == 0 {
		fmt.Fprintf(out, "There are no %s.\n", k.Resource.Resource)
		return nil
	}
	return printTable(out, &table, k.Namespaced && f.all)
}

func printTable(out io.Writer, t *metav1.Table, withNamespace bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if withNamespace {
		fmt.Fprint(w, "NAMESPACE\t")
	}
	var shown []int
	for i, c := range t.ColumnDefinitions {
		if c.Priority == 0 {
			shown = append(shown, i)
			fmt.Fprint(w, strings.ToUpper(c.Name), "\t")
		}
	}
	fmt.Fprintln(w)
	for _, row := range t.Rows {
		if withNamespace {
			var o metav1.PartialObjectMetadata
			if err := json.Unmarshal(row.Object.Raw, &o); err != nil {
				return fmt.Errorf("read a row: %w", err)
			}
			fmt.Fprint(w, o.Namespace, "\t")
		}
		for _, i := range shown {
			if i < len(row.Cells) && row.Cells[i] != nil {
				fmt.Fprint(w, terminal.OneLine(fmt.Sprint(row.Cells[i])))
			}
			fmt.Fprint(w, "\t")
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}
