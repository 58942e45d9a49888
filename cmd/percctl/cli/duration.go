package cli

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// days are what a duration of Go cannot have.
var days = regexp.MustCompile(`^(\d+(?:\.\d+)?)d`)

// durations makes the flags of a command, and of those below it, read durations as percctl
// prints them: 1d, and 2 min 3 s.
func durations(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() == "duration" {
			f.Value = durationValue{f.Value}
		}
	})
	for _, c := range cmd.Commands() {
		durations(c)
	}
}

type durationValue struct{ pflag.Value }

// Set reads a duration.
func (v durationValue) Set(s string) error { return v.Value.Set(goDuration(s)) }

// ParseDuration reads a duration as flags do.
func ParseDuration(s string) (time.Duration, error) { return time.ParseDuration(goDuration(s)) }

// goDuration is a duration as Go reads it.
func goDuration(s string) string {
	text := strings.ReplaceAll(strings.ReplaceAll(s, " ", ""), "min", "m")
	m := days.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return text
	}
	return strconv.FormatFloat(n*24, 'f', -1, 64) + "h" + text[len(m[0]):]
}
