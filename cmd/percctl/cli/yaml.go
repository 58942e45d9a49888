package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// marshalYAML returns v as YAML with the names and the order of its JSON, which is
// YAML already but for its style.
func marshalYAML(v any) ([]byte, error) {
	text, err := marshalJSON(v)
	if err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(escaped(text), &document); err != nil {
		return nil, err
	}
	block(document.Content[0])
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(&document), enc.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// marshalJSON leaves <, > and & as they are: this is not for web pages.
func marshalJSON(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(out.Bytes()), err
}

// escaped replaces the characters that JSON allows in a string and YAML does not.
func escaped(text []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(text) {
		if r == '\x7f' || r >= 0x80 && r < 0xa0 || r == '\ufeff' || r == '\ufffe' || r == '\uffff' {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

// block makes objects and lists span lines, unless they are empty, and takes the quotes
// from names. Values keep them: parsers of YAML 1.1 take more words for other types.
func block(n *yaml.Node) {
	if len(n.Content) > 0 {
		n.Style = 0
	}
	for i, child := range n.Content {
		block(child)
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			child.Style = 0
		}
	}
}
