// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/kinds"
	"github.com/weir-net/weir/internal/objects"
	"github.com/weir-net/weir/internal/terminal"
	"github.com/weir-net/weir/internal/watch"
)

// resourceFlags are shared by the commands on objects.
type resourceFlags struct {
	*options
	namespace string
	all       bool
	files     []string
	output    string
	patch     string
	patchType string
}

func newResourceCommands(o *options) []*cobra.Command {
	f := &resourceFlags{options: o}
	get := &cobra.Command{Use: "get KIND [NAME]", Short: "Show objects: ippools, felixconfigurations, nodestatuses, …", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return f.get(cmd.Context(), cmd.OutOrStdout(), args) }}
	get.Flags().StringVarP(&f.output, "output", "o", "", "yaml, json or name (default: a table)")
	get.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "objects of all namespaces")

	patch := &cobra.Command{Use: "patch KIND NAME", Short: "Change fields of an object", Args: cobra.ExactArgs(2),
		Example: `  weir patch felixconfiguration default --patch '{"spec":{"bpfExternalServiceMode":"DSR"}}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.patchObject(cmd.Context(), cmd.OutOrStdout(), args)
		}}
	patch.Flags().StringVarP(&f.patch, "patch", "p", "", "the change, as JSON or YAML")
	patch.Flags().StringVar(&f.patchType, "type", "merge", "merge (RFC 7386) or json (RFC 6902)")
	_ = patch.MarkFlagRequired("patch")

	label := &cobra.Command{Use: "label KIND NAME KEY=VALUE… KEY-…", Short: "Set labels, or remove them with a trailing dash", Args: cobra.MinimumNArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error { return f.label(cmd.Context(), cmd.OutOrStdout(), args) }}

	del := &cobra.Command{Use: "delete (KIND NAME… | -f FILE)", Short: "Remove objects",
		RunE: func(cmd *cobra.Command, args []string) error { return f.delete(cmd.Context(), cmd, args) }}
	del.Flags().StringSliceVarP(&f.files, "filename", "f", nil, "`file` with objects, - = standard input")

	commands := []*cobra.Command{get, patch, label, del}
	for _, verb := range []struct {
		name, short string
		do          objectFunc
	}{
		{"apply", "Create the objects of a file, and update those that exist", applyObject},
		{"create", "Create objects that must not exist", createObject},
		{"replace", "Replace objects that must exist", replaceObject},
	} {
		c := &cobra.Command{Use: verb.name + " -f FILE", Short: verb.short, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return f.eachObject(cmd.Context(), cmd, verb.do)
			}}
		c.Flags().StringSliceVarP(&f.files, "filename", "f", nil, "`file` with objects, - = standard input")
		_ = c.MarkFlagRequired("filename")
		commands = append(commands, c)
	}
	for _, c := range commands {
		c.Flags().StringVarP(&f.namespace, "namespace", "n", "default", "namespace, for kinds that have one")
	}
	return commands
}

// resource returns the access to a kind, in the namespace where it has one.
func (f *resourceFlags) resource(d dynamic.Interface, k kinds.Kind) dynamic.ResourceInterface {
	if k.Namespaced && !f.all {
		return d.Resource(k.Resource).Namespace(f.namespace)
	}
	return d.Resource(k.Resource)
}

func (f *resourceFlags) get(ctx context.Context, out io.Writer, args []string) error {
	k, err := kinds.Find(args[0])
	if err != nil {
		return err
	}
	switch f.output {
	case "", "wide":
		return f.getTable(ctx, out, k, args[1:])
	case "yaml", "json", "name":
	default:
		return fmt.Errorf("--output %q is none of yaml, json, name", f.output)
	}
	c, err := f.connect()
	if err != nil {
		return err
	}
	var items []unstructured.Unstructured
	if len(args) == 2 {
		u, err := f.resource(c.Dynamic, k).Get(ctx, args[1], metav1.GetOptions{})
		if err != nil {
			return explain("get", k.Name, args[1], err)
		}
		items = append(items, *u)
	} else {
		list, err := f.resource(c.Dynamic, k).List(ctx, metav1.ListOptions{})
		if err != nil {
			return explain("list", k.Name, "", err)
		}
		items = list.Items
	}
	return printObjects(out, f.output, k, items, len(args) == 2)
}

func printObjects(out io.Writer, format string, k kinds.Kind, items []unstructured.Unstructured, single bool) error {
	if format == "name" {
		for i := range items {
			fmt.Fprintf(out, "%s/%s\n", k.Resource.Resource, items[i].GetName())
		}
		return nil
	}
	var v any
	if single {
		unstructured.RemoveNestedField(items[0].Object, "metadata", "managedFields")
		v = items[0].Object
	} else {
		list := make([]any, len(items))
		for i := range items {
			unstructured.RemoveNestedField(items[i].Object, "metadata", "managedFields")
			list[i] = items[i].Object
		}
		v = map[string]any{"apiVersion": "v1", "kind": "List", "items": list}
	}
	var text string
	var err error
	if format == "yaml" {
		var raw []byte
		raw, err = yaml.Marshal(v)
		text = string(raw)
	} else {
		text, err = terminal.JSON(v, "  ")
	}
	if err != nil {
		return fmt.Errorf("print %s: %w", k.Name, err)
	}
	_, err = io.WriteString(out, text)
	return err
}

func (f *resourceFlags) patchObject(ctx context.Context, out io.Writer, args []string) error {
	k, err := kinds.Find(args[0])
	if err != nil {
		return err
	}
	body, err := yaml.YAMLToJSON([]byte(f.patch))
	if err != nil {
		return fmt.Errorf("--patch is neither JSON nor YAML: %w", err)
	}
	var pt types.PatchType
	switch f.patchType {
	case "merge":
		pt = types.MergePatchType
	case "json":
		pt = types.JSONPatchType
	default:
		return fmt.Errorf("--type %q is neither merge nor json", f.patchType)
	}
	return f.send(ctx, out, k, args[1], pt, body, "patched")
}

func (f *resourceFlags) label(ctx context.Context, out io.Writer, args []string) error {
	k, err := kinds.Find(args[0])
	if err != nil {
		return err
	}
	labels := map[string]any{}
	for _, a := range args[2:] {
		if key, value, ok := strings.Cut(a, "="); ok {
			labels[key] = value
		} else if key, ok := strings.CutSuffix(a, "-"); ok {
			labels[key] = nil
		} else {
			return fmt.Errorf("label %q is neither key=value nor key-", a)
		}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	return f.send(ctx, out, k, args[1], types.MergePatchType, body, "labelled")
}

func (f *resourceFlags) send(ctx context.Context, out io.Writer, k kinds.Kind, name string, pt types.PatchType, body []byte, done string) error {
	c, err := f.connect()
	if err != nil {
		return err
	}
	u, err := f.resource(c.Dynamic, k).Patch(ctx, name, pt, body, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return explain("patch", k.Name, name, err)
	}
	fmt.Fprintf(out, "%s %s %s\n", k.Name, name, done)
	warn(out, u)
	return nil
}

func (f *resourceFlags) delete(ctx context.Context, cmd *cobra.Command, args []string) error {
	if len(f.files) > 0 {
		if len(args) > 0 {
			return fmt.Errorf("delete takes either a kind with names or -f, not both")
		}
		return f.eachObject(ctx, cmd, deleteObject)
	}
	if len(args) < 2 {
		return fmt.Errorf("delete needs a kind and a name, or -f with a file")
	}
	k, err := kinds.Find(args[0])
	if err != nil {
		return err
	}
	c, err := f.connect()
	if err != nil {
		return err
	}
	for _, name := range args[1:] {
		if err := f.resource(c.Dynamic, k).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return explain("delete", k.Name, name, err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s %s deleted\n", k.Name, name)
	}
	return nil
}

// objectFunc does something with one object of a file, and says in a word what.
type objectFunc func(ctx context.Context, api dynamic.ResourceInterface, u *unstructured.Unstructured) (string, error)

func applyObject(ctx context.Context, api dynamic.ResourceInterface, u *unstructured.Unstructured) (string, error) {
	u.SetManagedFields(nil)
	u.SetResourceVersion("")
	_, err := api.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	return "applied", err
}

func createObject(ctx context.Context, api dynamic.ResourceInterface, u *unstructured.Unstructured) (string, error) {
	u.SetResourceVersion("")
	_, err := api.Create(ctx, u, metav1.CreateOptions{FieldManager: fieldManager, FieldValidation: metav1.FieldValidationStrict})
	return "created", err
}

func replaceObject(ctx context.Context, api dynamic.ResourceInterface, u *unstructured.Unstructured) (string, error) {
	if u.GetResourceVersion() == "" {
		old, err := api.Get(ctx, u.GetName(), metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		u.SetResourceVersion(old.GetResourceVersion())
	}
	_, err := api.Update(ctx, u, metav1.UpdateOptions{FieldManager: fieldManager, FieldValidation: metav1.FieldValidationStrict})
	return "replaced", err
}

func deleteObject(ctx context.Context, api dynamic.ResourceInterface, u *unstructured.Unstructured) (string, error) {
	return "deleted", api.Delete(ctx, u.GetName(), metav1.DeleteOptions{})
}

// eachObject reads all files before it changes anything, so that a typing error changes nothing.
func (f *resourceFlags) eachObject(ctx context.Context, cmd *cobra.Command, do objectFunc) error {
	type item struct {
		u *unstructured.Unstructured
		k kinds.Kind
	}
	var items []item
	for _, file := range f.files {
		text, err := readFile(cmd.InOrStdin(), file)
		if err != nil {
			return err
		}
		objects, err := deploy.Parse(text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, u := range objects {
			k, err := kinds.Of(u)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if u.GetName() == "" {
				return fmt.Errorf("%s: a %s has no metadata.name", file, k.Name)
			}
			if k.Namespaced && u.GetNamespace() == "" {
				u.SetNamespace(f.namespace)
			}
			if !k.Namespaced {
				u.SetNamespace("")
			}
			items = append(items, item{u, k})
		}
	}
	if len(items) == 0 {
		return fmt.Errorf("there is no object in %s", strings.Join(f.files, ", "))
	}
	c, err := f.connect()
	if err != nil {
		return err
	}
	for _, it := range items {
		api := dynamic.ResourceInterface(c.Dynamic.Resource(it.k.Resource))
		if it.k.Namespaced {
			api = c.Dynamic.Resource(it.k.Resource).Namespace(it.u.GetNamespace())
		}
		done, err := do(ctx, api, it.u)
		if err != nil {
			return explain(cmd.Name(), it.k.Name, it.u.GetName(), err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", objects.Describe(it.u), done)
		if !it.k.InForce && cmd.Name() != "delete" {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s is stored, but %s is not supported yet: it has no effect\n", objects.Describe(it.u), it.k.Name)
		}
		if cmd.Name() != "delete" {
			warn(cmd.ErrOrStderr(), it.u)
		}
	}
	return nil
}

// warn says what of an object the agents will not enforce as it is written: they convert it by the
// same code.
func warn(out io.Writer, u *unstructured.Unstructured) {
	for _, p := range watch.Check(u) {
		fmt.Fprintf(out, "warning: %s\n", p)
	}
}

func readFile(stdin io.Reader, name string) ([]byte, error) {
	if name == "-" {
		text, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return text, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return text, nil
}

// explain says what was being done, and what to do where that is known.
func explain(verb, kind, name string, err error) error {
	object := strings.TrimSpace(kind + " " + name)
	switch {
	case apierrors.IsNotFound(err) && kinds.Foreign(kind) && (name == "" || !strings.Contains(err.Error(), strconv.Quote(name))):
		return fmt.Errorf("%s %s: %w; its definition is not installed, and does not come with Weir: it is in release v0.1 of sigs.k8s.io/network-policy-api", verb, object, err)
	case apierrors.IsNotFound(err) && name == "":
		return fmt.Errorf("%s %s: %w; its CustomResourceDefinition is not installed: run `weir install`", verb, object, err)
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%s %s: it exists already; use `weir apply` or `weir replace`", verb, object)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%s %s: %w; it was changed meanwhile: get it again", verb, object, err)
	}
	return fmt.Errorf("%s %s: %w", verb, object, err)
}

func hasCondition(u *unstructured.Unstructured, want string) bool {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range list {
		if m, ok := c.(map[string]any); ok && m["type"] == want && m["status"] == "True" {
			return true
		}
	}
	return false
}
