package format

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestErrors: each typed error matches its own sentinel, and no other one. Only a conflict whose outcome
// is known can be tried again.
func TestErrors(t *testing.T) {
	sentinels := []error{ErrConflict, ErrUndetermined, ErrDone, ErrClosed, ErrNotInitialized, ErrSchema, ErrFormatVersion, ErrTooOld, ErrCorrupt, ErrInvalid, ErrLimit, ErrSerializableScan}
	conflict, unknown := &ConflictError{Cell: testPrimary, StartTS: 7, ConflictTS: 8}, &UndeterminedError{Primary: testPrimary, Err: context.Canceled}
	for _, tt := range []struct {
		err   error
		is    []error
		retry bool
	}{
		{conflict, []error{ErrConflict}, true},
		{unknown, []error{ErrUndetermined}, false},
		{&CorruptError{Cell: testPrimary}, []error{ErrCorrupt}, false},
		{&TooOldError{TS: 7, SafePoint: 8}, []error{ErrTooOld}, false},
		{Corruptf(testPrimary, "%d", 1), []error{ErrCorrupt}, false},
		{Invalidf("%d", 1), []error{ErrInvalid}, false},
		{Limitf("%d", 1), []error{ErrLimit}, false},
		{errors.Join(conflict, unknown), []error{ErrConflict, ErrUndetermined}, false},
		{fmt.Errorf("more: %w", conflict), []error{ErrConflict}, true},
		{nil, nil, false},
	} {
		var is []error
		for _, s := range sentinels {
			if errors.Is(tt.err, s) {
				is = append(is, s)
			}
		}
		if fmt.Sprint(is) != fmt.Sprint(tt.is) || Retryable(tt.err) != tt.retry {
			t.Errorf("%v is %v, retryable: %v", tt.err, is, Retryable(tt.err))
		}
	}
	if !errors.Is(unknown, context.Canceled) {
		t.Error("the error of an unknown outcome does not wrap its reason")
	}
}

// TestErrorTextsOfConflicts: the text of a conflict says what it was with.
func TestErrorTextsOfConflicts(t *testing.T) {
	for _, tt := range []struct {
		e    ConflictError
		says []string
	}{
		{ConflictError{Reason: ConflictWrite, StartTS: 70, ConflictTS: 80}, []string{"was written at 80, after this transaction's start at 70"}},
		{ConflictError{Reason: ConflictLock, StartTS: 70, ConflictTS: 60}, []string{"is locked by the transaction that started at 60; this one started at 70"}},
		{ConflictError{Reason: ConflictMarker, StartTS: 70, ConflictTS: 80}, []string{"has the rollback marker of the transaction that started at 80, after this one's start at 70"}},
		{ConflictError{Reason: ConflictRolledBack, StartTS: 70}, []string{"another client rolled back the transaction that started at 70"}},
		{ConflictError{Reason: ConflictBound, StartTS: 70, ConflictTS: 80}, []string{"the transaction that started at 70 had to commit before 80"}},
	} {
		tt.e.Cell = testPrimary
		for _, s := range append(tt.says, ErrConflict.Error()) {
			if !strings.Contains(tt.e.Error(), s) {
				t.Errorf("%s: %q, want %q", tt.e.Reason, tt.e.Error(), s)
			}
		}
	}
}

// TestFinal: only two states are final.
func TestFinal(t *testing.T) {
	for state, want := range map[State]bool{StateUnknown: false, StateLocked: false, StateCommitted: true, StateRolledBack: true} {
		if got := (Status{State: state}).Final(); got != want {
			t.Errorf("%v is final: %v", state, got)
		}
	}
	primary, secondary := Lock{Cell: testPrimary, Primary: testPrimary}, Lock{Cell: testSecondary, Primary: testPrimary}
	if !primary.IsPrimary() || secondary.IsPrimary() {
		t.Error("a primary lock is not told from a secondary one")
	}
}
