package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// TestDeclaredOutputs: commands print what they declare with cli.Prints, and
// nothing else.
func TestDeclaredOutputs(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"lock list --all", "lock show accounts/joe/bal:usd", "lock resolve --all --dry-run", "lock resolve --all --yes",
		"gc plan", "gc run --dry-run", "gc status", "check --all", "doctor", "config view --project p",
		"get accounts/ann/bal:usd", "scan accounts", "history accounts joe", "set accounts/ann/bal:usd 1 --yes", "delete accounts/ann/bal:usd --dry-run",
		"repair plan --all", "table adopt legacy --dry-run", "table adopt legacy --yes", "table describe accounts", "table expire accounts bal 1h --dry-run", "table verify --all",
		"observer list", "observer add accounts/bal:usd x --yes", "notify list", "notify wait", "notify send accounts/ann/bal:usd --dry-run",
		"notify replay --all --dry-run", "notify replay --all --yes", "notify backfill accounts/bal:usd --dry-run", "worker list", "top --once",
		"tso decode 1795152600000000", "version",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(line)
			cmd, _, err := documentedRoot().Find(args)
			if err != nil {
				t.Fatal(err)
			}
			declared := cli.Outputs(cmd)
			args = append(args, "-o", "json")
			if cmd.Flag("embedded") != nil {
				args = append(args, "--embedded")
			}
			var out, errs bytes.Buffer
			code := program.Main(args, &cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
			if out.Len() == 0 {
				t.Fatalf("exit code %d, and no output: %s", code, errs.String())
			}
			var failed []error
			for _, o := range declared {
				typ := o.Type
				if o.List {
					typ = reflect.SliceOf(typ)
				}
				dec := json.NewDecoder(bytes.NewReader(out.Bytes()))
				dec.DisallowUnknownFields()
				err := dec.Decode(reflect.New(typ).Interface())
				if err == nil {
					if _, err = dec.Token(); errors.Is(err, io.EOF) {
						return
					}
				}
				failed = append(failed, err)
			}
			t.Errorf("it prints none of the %d types that it declares, %v:\n%s", len(declared), errors.Join(failed...), out.String())
		})
	}
}

// TestEveryCommandHasOutput: each command that does something has -o, so that its errors can
// be JSON.
func TestEveryCommandHasOutput(t *testing.T) {
	t.Parallel()
	n := 0
	walk(documentedRoot(), func(c *cobra.Command) {
		if c.HasSubCommands() || !c.Runnable() || c.Name() == "help" || c.Parent().Name() == "completion" {
			return
		}
		if n++; c.Flag("output") == nil {
			t.Errorf("%s has no -o", c.CommandPath())
		}
	})
	if n < 50 {
		t.Errorf("only %d commands", n)
	}
}
