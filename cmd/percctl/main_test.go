package main

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/percolator-bigtable/percolator/emulator_test/clitest"
)

// TestMain makes percctl a command that scripts and tests can run; it is this
// test's binary.
func TestMain(m *testing.M) {
	shortenGC()
	// Most of the time tests wait for percctl, and percctl for something else. -parallel overrides it.
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	testscript.Main(m, map[string]func(){"percctl": main})
}

func TestScripts(t *testing.T) {
	clitest.Run(t, testscript.Params{
		Files:               clitest.Scripts(t, "testdata/script"),
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("BIGTABLE_EMULATOR_HOST", os.Getenv("BIGTABLE_EMULATOR_HOST"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits},
	})
}
