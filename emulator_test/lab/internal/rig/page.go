package rig

import (
	"fmt"
	"strings"
)

// ReplaceMeasured replaces the text between the marks of a part of a page.
func ReplaceMeasured(page, name, text string) (string, error) {
	begin := "<!-- measured: " + name + " -->\n"
	head, rest, ok := strings.Cut(page, begin)
	_, tail, ended := strings.Cut(rest, "<!-- end -->\n")
	if !ok || !ended {
		return "", fmt.Errorf("the page has no lines %q and %q", strings.TrimSpace(begin), "<!-- end -->")
	}
	return head + begin + "\n" + strings.TrimSpace(text) + "\n\n<!-- end -->\n" + tail, nil
}
