package rig

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// A Machine says where and when something was measured.
type Machine struct {
	CPUs      int    `json:"cpus"`            // processors
	Processor string `json:"processor"`       // empty if not known
	OS        string `json:"os"`              // and architecture
	Go        string `json:"go"`              // its version
	Client    string `json:"bigtable_client"` // its version
	Load      string `json:"load_average"`    // before the measurement: over 1, 5 and 15 minutes; empty if not known
	Time      string `json:"time"`            // when the measurement began
}

// ThisMachine describes the machine that the program runs on.
func ThisMachine() Machine {
	m := Machine{
		CPUs: runtime.NumCPU(), Go: runtime.Version(), OS: runtime.GOOS + "/" + runtime.GOARCH,
		Time: time.Now().UTC().Format(time.RFC3339),
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, d := range build.Deps {
			if d.Path == "cloud.google.com/go/bigtable" {
				m.Client = d.Version
			}
		}
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		if f := strings.Fields(string(text)); len(f) >= 3 {
			m.Load = strings.Join(f[:3], " ")
		}
	}
	m.Processor = processor()
	return m
}

// processor returns the processor's name, if Linux has it.
func processor() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (m Machine) String() string {
	text := fmt.Sprintf("%s, %d CPUs, %s, %s, bigtable %s", m.Time, m.CPUs, m.OS, m.Go, m.Client)
	if m.Processor != "" {
		text += ", " + m.Processor
	}
	if m.Load != "" {
		text += ", load average " + m.Load
	}
	return text
}
