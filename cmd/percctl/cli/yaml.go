package cli

import (
	"bytes"
	"encoding/json"
	"errors"

	"go.yaml.in/yaml/v3"

	"github.com/percolator-bigtable/percolator/txn/admin/words"
)

// marshalYAML returns v as YAML with the names and the order of its JSON, which is
// YAML already but for its style.
func marshalYAML(v any) ([]byte, error) {
	text, err := marshalJSON(v)
	if err != nil {
		return nil, err
	}
	// YAML allows less in a string than JSON.
	var document yaml.Node
	if err := yaml.Unmarshal(words.EscapeYAML(text), &document); err != nil {
		return nil, err
	}
	block(document.Content[0])
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(&document), enc.Close()); err != nil {
		return nil, err
	}
	return words.EscapeYAML(out.Bytes()), nil
}

// marshalJSON leaves <, > and & as they are: this is not for web pages.
func marshalJSON(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(out.Bytes()), err
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
