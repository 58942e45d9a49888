// Command protogen generates the Go code of protocol buffers. It needs Go only:
// no protoc and no plugins in the path. Run it from its module:
//
//	go run -C .ci/tools ./protogen DIRECTORY…
//	go run -C .ci/tools ./protogen -check DIRECTORY…
//
// The first form writes the code of each .proto file beside it. The second form
// changes nothing, and fails if the code is not up to date.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

// plugins are tools of this module, so go.mod pins their versions.
var plugins = []string{"protoc-gen-go", "protoc-gen-go-grpc"}

func main() {
	check := flag.Bool("check", false, "compare the code with the files and change nothing")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "protogen: name at least one directory that has .proto files")
		os.Exit(2)
	}
	for _, dir := range flag.Args() {
		if err := run(context.Background(), dir, *check); err != nil {
			fmt.Fprintf(os.Stderr, "protogen: %s: %v\n", dir, err)
			os.Exit(1)
		}
	}
}

func run(ctx context.Context, dir string, check bool) error {
	request, err := compile(ctx, dir)
	if err != nil {
		return err
	}
	for _, plugin := range plugins {
		response, err := runPlugin(ctx, plugin, request)
		if err != nil {
			return err
		}
		for _, f := range response.File {
			path := filepath.Join(dir, filepath.FromSlash(f.GetName()))
			if !check {
				if err := os.WriteFile(path, []byte(f.GetContent()), 0o666); err != nil {
					return err
				}
				continue
			}
			old, err := os.ReadFile(path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if !bytes.Equal(old, []byte(f.GetContent())) {
				return fmt.Errorf("%s is not up to date; run go generate in that directory", f.GetName())
			}
		}
	}
	return nil
}

// compile does what protoc does before it calls a plugin. The .proto files of
// one directory may import each other and Google's standard files.
func compile(ctx context.Context, dir string) (*pluginpb.CodeGeneratorRequest, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.proto"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, errors.New("no .proto files")
	}
	request := &pluginpb.CodeGeneratorRequest{Parameter: proto.String("paths=source_relative")}
	for _, p := range paths {
		request.FileToGenerate = append(request.FileToGenerate, filepath.Base(p))
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard, // the comments
	}
	files, err := compiler.Compile(ctx, request.FileToGenerate...)
	if err != nil {
		return nil, err
	}
	// A plugin wants each file after its imports.
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		request.ProtoFile = append(request.ProtoFile, protoutil.ProtoFromFileDescriptor(f))
	}
	for _, f := range files {
		add(f)
	}
	return request, nil
}

func runPlugin(ctx context.Context, plugin string, request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	in, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "tool", plugin)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", plugin, err)
	}
	response := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(out, response); err != nil {
		return nil, fmt.Errorf("%s: its answer: %w", plugin, err)
	}
	if response.Error != nil {
		return nil, fmt.Errorf("%s: %s", plugin, response.GetError())
	}
	return response, nil
}
