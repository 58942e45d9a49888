package tso_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// These tests bring an emulator of their own, with faults in it; the Bigtable
	// client would connect to this one as well.
	_ = os.Unsetenv("BIGTABLE_EMULATOR_HOST")
	goleak.VerifyTestMain(m)
}
