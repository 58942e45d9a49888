package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/template"

	"github.com/itchyny/gojq"
	"github.com/spf13/cobra"
)

// filterFlags adds --jq and --template to a command that prints JSON.
func filterFlags(cmd *cobra.Command) {
	cmd.Flags().String("jq", "", "print what this jq expression makes of the JSON (percctl help formatting)")
	cmd.Flags().String("template", "", "print the JSON with this Go template (percctl help formatting)")
}

// filtered makes a command, and those below it, obey --jq and --template.
func filtered(cmd *cobra.Command, s *Streams) {
	for _, c := range cmd.Commands() {
		filtered(c, s)
	}
	run := cmd.RunE
	if run == nil || cmd.Flags().Lookup("jq") == nil {
		return
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		show, err := filterOf(cmd)
		if err != nil {
			return err
		}
		if show == nil {
			return run(cmd, args)
		}
		out := s.Out
		defer func() { s.Out = out }()
		r, w := io.Pipe()
		s.Out = w
		done := make(chan error, 1)
		go func() {
			err := showAll(cmd.Context(), r, func(v any) error { return show(out, v) })
			_, _ = io.Copy(io.Discard, r) // so that the command can end
			done <- err
		}()
		err = run(cmd, args)
		_ = w.Close()
		if shown := <-done; err == nil {
			err = shown
		}
		return err
	}
}

// showAll shows each JSON value of r.
func showAll(ctx context.Context, r io.Reader, show func(any) error) error {
	values := json.NewDecoder(r)
	values.UseNumber() // a float64 would not hold every integer
	for ctx.Err() == nil {
		var v any
		switch err := values.Decode(&v); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := show(v); err != nil {
			return err
		}
	}
	return nil
}

// filterOf returns what a command's flags make of its JSON, or nil if they are not set.
func filterOf(cmd *cobra.Command) (show func(io.Writer, any) error, err error) {
	expression, _ := cmd.Flags().GetString("jq")
	text, _ := cmd.Flags().GetString("template")
	name := "jq"
	switch {
	case expression == "" && text == "":
		return nil, nil
	case expression != "" && text != "":
		return nil, Usagef("--jq and --template: use one of them")
	case text != "":
		name = "template"
		show, err = templateFilter(text)
	default:
		show, err = jqFilter(expression)
	}
	if err != nil {
		return nil, Usagef("--%s: %w", name, err)
	}
	f := cmd.Flag("output")
	if f.Changed && f.Value.String() != string(JSON) && f.Value.String() != string(JSONL) {
		return nil, Usagef("--%s does not go with --output %s", name, f.Value)
	}
	if !f.Changed && f.DefValue != string(JSONL) {
		err = f.Value.Set(string(JSON))
	}
	return show, err
}

func jqFilter(expression string) (func(io.Writer, any) error, error) {
	query, err := gojq.Parse(expression)
	if err != nil {
		return nil, err
	}
	code, err := gojq.Compile(query)
	if err != nil {
		return nil, err
	}
	return func(w io.Writer, v any) error {
		for results := code.Run(v); ; {
			v, ok := results.Next()
			if !ok {
				return nil
			}
			line, ok := v.(string)
			if err, bad := v.(error); bad {
				return fmt.Errorf("--jq: %w", err)
			}
			if !ok {
				b, err := gojq.Marshal(v)
				if err != nil {
					return fmt.Errorf("--jq: %w", err)
				}
				line = string(b)
			}
			if _, err := fmt.Fprintln(w, line); err != nil {
				return err
			}
		}
	}, nil
}

func templateFilter(text string) (func(io.Writer, any) error, error) {
	t, err := template.New("").Option("missingkey=zero").Funcs(template.FuncMap{
		"json": func(v any) (string, error) { b, err := marshalJSON(v); return string(b), err },
		"join": func(sep string, all []any) string {
			words := make([]string, len(all))
			for i, v := range all {
				words[i] = fmt.Sprint(v)
			}
			return strings.Join(words, sep)
		},
	}).Parse(text)
	if err != nil {
		return nil, err
	}
	return func(w io.Writer, v any) error {
		var b strings.Builder
		if err := t.Execute(&b, v); err != nil {
			return fmt.Errorf("--template: %w", err)
		}
		if !strings.HasSuffix(b.String(), "\n") {
			b.WriteByte('\n')
		}
		_, err := io.WriteString(w, b.String())
		return err
	}, nil
}
