package main

import (
	"strings"
	"testing"
	"time"
)

// TestJudge plants anomalies in a history that is in order without them.
func TestJudge(t *testing.T) {
	const begun = `{"type":"invoke","process":1,"time":10,"value":[["w","x",1]]}
{"type":"ok","process":1,"time":20,"value":[["w","x",1]]}
`
	for _, test := range []struct {
		name, rest string
		want       int
	}{
		{"a read after the write", `{"type":"invoke","process":2,"time":30,"value":[]}
{"type":"ok","process":2,"time":40,"value":[["r","x",1]]}`, 0},
		{"a stale read", `{"type":"invoke","process":2,"time":30,"value":[]}
{"type":"ok","process":2,"time":40,"value":[["r","x",null]]}`, 1},
		{"a read beside the write", `{"type":"invoke","process":2,"time":15,"value":[]}
{"type":"ok","process":2,"time":40,"value":[["r","x",null]]}`, 0},
		{"a lost update", `{"type":"invoke","process":2,"time":30,"value":[]}
{"type":"invoke","process":3,"time":31,"value":[]}
{"type":"ok","process":2,"time":40,"value":[["r","x",1],["w","x",2]]}
{"type":"ok","process":3,"time":41,"value":[["r","x",1],["w","x",3]]}`, 1},
		{"a read of what failed", `{"type":"invoke","process":2,"time":30,"value":[["w","x",2]]}
{"type":"fail","process":2,"time":40,"value":[["w","x",2]]}
{"type":"invoke","process":2,"time":50,"value":[]}
{"type":"ok","process":2,"time":60,"value":[["r","x",2]]}`, 1},
		{"an unknown outcome that took effect late", `{"type":"invoke","process":2,"time":30,"value":[["w","x",2]]}
{"type":"info","process":2,"time":40,"value":[["w","x",2]]}
{"type":"invoke","process":3,"time":50,"value":[]}
{"type":"ok","process":3,"time":60,"value":[["r","x",1]]}
{"type":"invoke","process":3,"time":70,"value":[]}
{"type":"ok","process":3,"time":80,"value":[["r","x",2]]}`, 0},
		{"an unknown outcome that is taken back", `{"type":"invoke","process":2,"time":30,"value":[["w","x",2]]}
{"type":"invoke","process":3,"time":50,"value":[]}
{"type":"ok","process":3,"time":60,"value":[["r","x",2]]}
{"type":"invoke","process":3,"time":70,"value":[]}
{"type":"ok","process":3,"time":80,"value":[["r","x",1]]}`, 1},
		{"a list that loses an element", `{"type":"invoke","process":2,"time":30,"value":[["append","l",1]]}
{"type":"ok","process":2,"time":40,"value":[["append","l",1]]}
{"type":"invoke","process":2,"time":50,"value":[["append","l",2]]}
{"type":"ok","process":2,"time":60,"value":[["r","l",[]],["append","l",2]]}`, 1},
		{"not a history", `{"type":"ok","process":9,"time":1,"value":[]}`, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := judge(test.name, strings.NewReader(begun+test.rest), time.Minute); got != test.want {
				t.Errorf("exit status %d, want %d", got, test.want)
			}
		})
	}
}
