package clitest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

var (
	codeSpan = regexp.MustCompile("`([^`]+)`")
	indented = regexp.MustCompile(`^ {4}`)
	// What a program prints on standard error begins with the command, too.
	message = regexp.MustCompile(`^[a-z ]+: `)
)

// DocumentedCommands are the command lines in a document that begin with program,
// without it: in fenced and indented code, and in code spans, which may run over a
// line's end.
func DocumentedCommands(program, text string) (all []string) {
	codeLine := regexp.MustCompile(`^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*` + regexp.QuoteMeta(program) + ` (.+)$`)
	fenced := false
	var prose []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
			prose = append(prose, "")
		case fenced, indented.MatchString(line) && codeLine.MatchString(line):
			if m := codeLine.FindStringSubmatch(line); m != nil && !message.MatchString(m[1]) {
				all = append(all, m[1])
			}
		default:
			prose = append(prose, strings.TrimSpace(line))
		}
	}
	for paragraph := range strings.SplitSeq(strings.Join(prose, "\n"), "\n\n") {
		for _, m := range codeSpan.FindAllStringSubmatch(strings.ReplaceAll(paragraph, "\n", " "), -1) {
			if line, ok := strings.CutPrefix(m[1], program+" "); ok {
				all = append(all, line)
			}
		}
	}
	return all
}

// WrongCommand says what a command line names that does not exist. list|show
// stands for both commands; words in capitals and the like are arguments.
func WrongCommand(root *cobra.Command, line string) error {
	words := strings.Fields(line)
	if end := slices.IndexFunc(words, func(w string) bool {
		return w == "|" || w == "&&" || w == "&" || strings.HasPrefix(w, "#") || strings.HasPrefix(w, ">") || strings.HasSuffix(w, ";")
	}); end >= 0 {
		if strings.HasSuffix(words[end], ";") {
			words[end] = strings.TrimSuffix(words[end], ";")
			end++
		}
		words = words[:end]
	}
	all := []*cobra.Command{root}
	for len(words) > 0 && all[0].HasAvailableSubCommands() {
		var next []*cobra.Command
		for name := range strings.SplitSeq(words[0], "|") {
			i := slices.IndexFunc(all[0].Commands(), func(c *cobra.Command) bool { return c.Name() == name || c.HasAlias(name) })
			if i >= 0 {
				next = append(next, all[0].Commands()[i])
			} else if regexp.MustCompile(`^[a-z]`).MatchString(name) {
				return fmt.Errorf("%s has no command %q", all[0].CommandPath(), name)
			}
		}
		if len(next) == 0 {
			break
		}
		all, words = next, words[1:]
	}
	for _, c := range all {
		for _, w := range words {
			name, _, _ := strings.Cut(strings.Trim(w, "[]()…,."), "=")
			switch {
			case strings.HasPrefix(name, "--") && len(name) > 2:
				if c.Flag(name[2:]) == nil && name != "--help" {
					return fmt.Errorf("%s has no flag %s", c.CommandPath(), name)
				}
			case regexp.MustCompile(`^-[a-z]$`).MatchString(name):
				if c.Flags().ShorthandLookup(name[1:]) == nil && c.InheritedFlags().ShorthandLookup(name[1:]) == nil {
					return fmt.Errorf("%s has no flag %s", c.CommandPath(), name)
				}
			}
		}
	}
	return nil
}
