package tso_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/tso"
)

// TestClientConfigIsChecked: a client that cannot work is not made, and the error names the field.
func TestClientConfigIsChecked(t *testing.T) {
	one := []string{"localhost:1"}
	for _, tt := range []struct {
		cfg  tso.ClientConfig
		says []string
	}{
		{tso.ClientConfig{}, []string{"ClientConfig.Addresses is empty"}},
		{tso.ClientConfig{Addresses: []string{"localhost:1", "%zz"}}, []string{`address "%zz"`}},
		{tso.ClientConfig{Addresses: one, Timeout: -1}, []string{"ClientConfig: Timeout is -1ns"}},
		{tso.ClientConfig{Addresses: one, AttemptTimeout: -1}, []string{"ClientConfig: AttemptTimeout is -1ns"}},
		{tso.ClientConfig{Addresses: one, Timeout: -1, AttemptTimeout: -2}, []string{"Timeout is -1ns", "AttemptTimeout is -2ns"}},
		{tso.ClientConfig{Addresses: one, DialOptions: []grpc.DialOption{grpc.WithDefaultServiceConfig("{")}}, []string{`address "localhost:1"`, "service config"}},
	} {
		c, err := tso.NewClient(tt.cfg)
		if c != nil || err == nil {
			t.Errorf("%+v: made", tt.cfg)
			continue
		}
		for _, says := range tt.says {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%v does not say %q", err, says)
			}
		}
		if _, err := tso.ServerStatus(t.Context(), tt.cfg); err == nil {
			t.Errorf("the status with %+v", tt.cfg)
		}
	}
}
