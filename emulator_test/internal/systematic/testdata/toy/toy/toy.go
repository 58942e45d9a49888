// Package toy has code whose mutants are killed, survive, hang or are not reached.
package toy

import "errors"

// Larger has a bound that no test can notice, and conditions that the test notices.
func Larger(a, b int) int {
	if a < b {
		return b
	}
	return a
}

// Checked has an error that the test does not look at.
func Checked(n int) (int, error) {
	return n, check(n)
}

func check(n int) error {
	if n == 0 {
		return errors.New("zero")
	}
	return nil
}

// Count hangs if its counter stands still.
func Count(n int) (steps int) {
	for i := 0; i != n; steps++ {
		i++
	}
	return steps
}

// Wait does not return if nothing is sent.
func Wait() int {
	c := make(chan int)
	go func() {
		c <- 1
	}()
	return <-c
}

// Flaky is called by a test that fails whenever it runs while a file is there.
func Flaky() bool {
	return len("x") == Larger(1, 1)
}

func unused() int {
	return Larger(1, 2) + 1
}
