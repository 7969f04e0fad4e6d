// SPDX-License-Identifier: Apache-2.0

// Command gen-proto makes Go of .proto files of the main module, next to them, without a protoc of
// the machine: it compiles the files by itself and runs protoc-gen-go of the version that the main
// module names, which is the version of the library that the code is linked with. It runs in
// hack/tools:
//
//	go -C hack/tools run ./gen-proto internal/fanout/wire/wire.proto
//
// Files of another project, which name each other and a Go package of theirs, stay as they are: -in
// is the folder that their names are relative to, and their Go packages are below it.
//
//	go -C hack/tools run ./gen-proto -in internal/hubble/api relay/relay.proto flow/flow.proto
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

const (
	// root is the main module, whose tools have protoc-gen-go.
	root   = "../.."
	module = "github.com/weir-net/weir"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	in := flag.String("in", "", "folder that the names of files are relative to; their Go packages are below it, whatever they say")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: gen-proto [-in FOLDER] FILE.proto ...")
		os.Exit(2)
	}
	if err := run(ctx, *in, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "gen-proto:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in string, names []string) error {
	folder := filepath.Join(root, in)
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{folder}}),
		SourceInfoMode: protocompile.SourceInfoStandard, // comments
	}
	files, err := compiler.Compile(ctx, names...)
	if err != nil {
		return err
	}
	parameter := "paths=source_relative"
	if in != "" {
		for _, name := range names {
			parameter += ",M" + name + "=" + path.Join(module, in, path.Dir(name))
		}
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: names, Parameter: proto.String(parameter)}
	has := map[string]bool{}
	add := func(f protoreflect.FileDescriptor) {
		if !has[f.Path()] {
			has[f.Path()] = true
			request.ProtoFile = append(request.ProtoFile, protoutil.ProtoFromFileDescriptor(f))
		}
	}
	for _, f := range files { // what a file imports comes before it
		imports := f.Imports()
		for i := range imports.Len() {
			add(imports.Get(i).FileDescriptor)
		}
		add(f)
	}
	response, err := generate(ctx, request)
	if err != nil {
		return err
	}
	for _, f := range response.File {
		if err := os.WriteFile(filepath.Join(folder, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate runs the plugin.
func generate(ctx context.Context, request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	in, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "tool", "protoc-gen-go")
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = root, bytes.NewReader(in), &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("protoc-gen-go: %w", err)
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out.Bytes(), &response); err != nil {
		return nil, err
	}
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	return &response, nil
}
