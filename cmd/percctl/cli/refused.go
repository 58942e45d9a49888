package cli

import (
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// missing is how Bigtable names the permission that an account lacks.
var missing = regexp.MustCompile(`\bbigtable\.([a-zA-Z]+)\.([a-zA-Z]+)\b`)

// roleFor returns the smallest predefined role for transactions with a permission of Bigtable.
func roleFor(resource, permission string) string {
	switch {
	case resource == "tables" && (permission == "readRows" || permission == "mutateRows" || permission == "sampleRowKeys"):
		return "roles/bigtable.user"
	case permission == "get" || permission == "list":
		return "roles/bigtable.viewer"
	}
	return "roles/bigtable.admin"
}

// refused returns what to do about an error with which Bigtable or Google's servers of tokens
// refuse an account; "" for other errors.
func refused(err error) string {
	code, text := status.Code(err), err.Error()
	m := missing.FindStringSubmatch(text)
	switch {
	case strings.Contains(text, "tso: this server"), strings.Contains(text, "it is disabled"):
		return "" // the oracle refuses, or an API is off; the text says what to do
	case code == codes.PermissionDenied && m != nil:
		return "the account lacks the permission " + m[0] + ": grant it " + roleFor(m[1], m[2]) + ", on the instance or on the table (docs/security.md lists what each program needs)"
	case code == codes.PermissionDenied:
		return "the account may not do this: grant it roles/bigtable.user on the instance (docs/security.md lists what each program needs)"
	case code == codes.Unauthenticated, strings.Contains(text, "cannot fetch token"), strings.Contains(text, "invalid_grant"), strings.Contains(text, "could not find default credentials"):
		return "the credentials are missing, expired or not for this service: run gcloud auth application-default login, or set PERCCTL_CREDS to the file of a service account (percctl help environment)"
	}
	return ""
}
