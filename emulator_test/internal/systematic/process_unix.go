//go:build unix

package systematic

import (
	"os/exec"
	"syscall"
)

// group makes cmd the leader of a process group, which end kills: tests start processes.
func group(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func end(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
