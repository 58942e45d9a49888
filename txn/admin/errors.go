package admin

import (
	"fmt"

	"github.com/percolator-bigtable/percolator/txn/format"
)

func invalidf(text string, args ...any) error {
	return fmt.Errorf("admin: %w: %s", format.ErrInvalid, fmt.Sprintf(text, args...))
}
