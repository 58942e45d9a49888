package connect

import (
	"strings"
	"testing"
)

// TestPlainTextIsSaid: a command that asks another machine's oracle without TLS says
// so, also when the oracle's row names the machine. With TLS, no address is asked in
// plain text.
func TestPlainTextIsSaid(t *testing.T) {
	for address, warned := range map[string]bool{
		"127.0.0.1:7070": false, "[::1]:7070": false, "localhost:7070": false,
		"10.0.0.1:7070": true, "tso-0.example.com:7070": true, "[2001:db8::1]:7070": true,
		"localhost.example.com:7070": true, "127.0.0.1.example.com:7070": true,
	} {
		said := ""
		f := OracleFlags{Warn: func(s string) { said += s }}
		cfg, err := f.ClientConfig(address) // from the row
		if err != nil || cfg.Credentials != nil {
			t.Fatal(cfg, err)
		}
		if strings.Contains(said, address+" in plain text") != warned {
			t.Errorf("%s: %q", address, said)
		}
	}
	said := ""
	f := OracleFlags{CA: "testdata/ca.crt", Warn: func(s string) { said += s }}
	if cfg, err := f.ClientConfig("tso-0.example.com:7070"); err == nil && cfg.Credentials == nil || said != "" {
		t.Errorf("with a CA: %v, %v, %q", cfg, err, said)
	}
}
