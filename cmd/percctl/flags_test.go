package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// TestFlagsBeforeConnection: a number or duration that a flag cannot have is refused before the
// command looks for an instance, and the message names the flag. The other arguments are those of
// the first example of each command.
func TestFlagsBeforeConnection(t *testing.T) {
	for _, name := range []string{"PERCCTL_PROJECT", "PERCCTL_INSTANCE", "GOOGLE_CLOUD_PROJECT", "BIGTABLE_EMULATOR_HOST"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", t.TempDir())
	checked := 0
	check := func(line, flag, value string) {
		checked++
		var out, errs bytes.Buffer
		args := append(strings.Fields(line)[1:], "--"+flag+"="+value)
		code := program.Main(args, &cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
		if code != cli.ExitUsage || !strings.Contains(errs.String(), "--"+flag+" ") {
			t.Errorf("percctl %s: exit code %d\n%s", strings.Join(args, " "), code, &errs)
		}
	}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		line, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n")
		line, _, _ = strings.Cut(line, "#")
		if cmd.Parent() != nil && cmd.Parent().Name() == "gc" && cmd.LocalFlags().Lookup("retention") != nil {
			check(line, "retention", "1s")
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			bad := map[string][]string{"int": {"-5"}, "float64": {"-5", "NaN"}, "duration": {"-5s"}}[f.Value.Type()]
			for _, value := range bad {
				check(strings.ReplaceAll(line, "--project p --instance i", ""), f.Name, value)
			}
		})
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(documentedRoot())
	if checked < 100 {
		t.Errorf("only %d flags", checked)
	}
}
