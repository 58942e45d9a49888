// Package topics is what percctl help says beside the commands.
package topics

import (
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// All returns the help topics.
func All() []cli.Command {
	return []cli.Command{
		topic("environment", "Settings: flags, environment variables, files", environment),
		topic("formatting", "Output formats, timestamps and values", formatting),
		topic("exit-codes", "Exit codes", exitCodes),
		topic("cells", "How to write cells, columns, rows and transactions", cells),
	}
}

// topic is a command that cannot be run; cobra lists it apart from those that
// can.
func topic(name, short, long string) cli.Command {
	return func(*cli.Streams) *cobra.Command {
		cmd := &cobra.Command{Use: name, Short: short, Long: long}
		cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) { cmd.Println(cmd.Long) })
		return cmd
	}
}

const environment = `A flag takes precedence over its environment variable, and the variable over ~/.cbtrc,
the configuration file of cbt (lines of key = value). percctl config view shows each
value and where it came from.

  setting          flag              environment                             ~/.cbtrc
  project          --project         PERCCTL_PROJECT, GOOGLE_CLOUD_PROJECT   project
  instance         --instance        PERCCTL_INSTANCE                        instance
  app profile      --app-profile     PERCCTL_APP_PROFILE                     -
  metadata table   --metadata-table  PERCCTL_METADATA_TABLE                  -
  credentials      -                 PERCCTL_CREDS                           creds
  data endpoint    -                 PERCCTL_DATA_ENDPOINT                   data-endpoint
  admin endpoint   -                 PERCCTL_ADMIN_ENDPOINT                  admin-endpoint
  authorized views -                 PERCCTL_VIEWS                           -
  oracle servers   --oracle          PERCCTL_ORACLE                          -
  their CAs        --oracle-ca       PERCCTL_ORACLE_CA                       -
  certificate      --oracle-cert     PERCCTL_ORACLE_CERT                     -
  its key          --oracle-key      PERCCTL_ORACLE_KEY                      -

Credentials are the path of a file as gcloud makes it: the key of a service account, the
login of a person, an impersonated service account, or an external account. Use only files
that you trust: they name the servers that percctl asks for tokens. Without a file, percctl
uses Google's application default credentials. Google's libraries also read
GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_CLOUD_QUOTA_PROJECT, GOOGLE_CLOUD_UNIVERSE_DOMAIN,
HTTPS_PROXY and SSL_CERT_FILE.

Authorized views have the form TABLE=VIEW,TABLE=VIEW. Transactions and snapshots then open
these tables through their views. A view must contain the families _lock, _write, _mark,
_notify and _ack of its rows, without a restriction of qualifiers. doctor, table, conformance
and completion open the tables themselves.

The oracle settings have an effect only if the oracle is in served mode. Without
servers, percctl asks the leader that the oracle's row in Bigtable names. Without
CAs and certificate, it connects in plain text.

--embedded needs no settings: it starts an emulator inside the process, with a small
deployment to look at, and discards it when the command ends.

BIGTABLE_EMULATOR_HOST, the address of an emulator, takes precedence over
credentials and endpoints. With it, project and instance can be any names.

percctl exports traces and metrics as the environment variables of OpenTelemetry
say, by default none: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_EXPORTER (otlp,
console, none), OTEL_METRICS_EXPORTER (otlp, prometheus, console, none), and the
others of its SDK. OTEL_EXPORTER_PROMETHEUS_HOST and OTEL_EXPORTER_PROMETHEUS_PORT
are the address at which Prometheus scrapes a command that keeps running.

NO_COLOR, set to any value, turns colours off. They are on only at a terminal.`

const formatting = `-o, --output chooses the format of the data that a command prints to standard
output. Progress, counts, warnings, plans and errors go to standard error.

  table   for people; may change between releases, and shortens long values
  json    one value: an object, or an array
  jsonl   one object per line, for lists
  yaml    the same names as json
  csv     for lists, with a line of column names

--jq EXPRESSION prints what a jq expression makes of the JSON: strings as they are, other
values as JSON, one per line. --template TEXT prints the JSON with a Go template, in
which json VALUE and join SEPARATOR LIST also work. With -o jsonl, both apply to each
line. For example:

  percctl lock list --all --jq '.[].primary'
  percctl get accounts/bob/bal:usd --template '{{.text}} at {{.commit_time}}'

With -o json or jsonl an error is JSON, too, as the last line of standard error:

  {"command":"percctl get","error":"…","exit_code":3}

A command prints a list while it reads it. If an error ends the list, what was
printed is well-formed, and the exit code is not 0.

In json, jsonl, yaml and csv the names, types and meanings of fields stay the same
between releases; new fields may appear. Optional fields are left out if they are
empty, 0 or false. Lists without items are [], never null. Other fields are always
there.

A timestamp appears twice: as the integer that commands take (…_ts, microseconds
since 1970, in the order of all transactions), and as an RFC 3339 time (…_time).
Where there is no timestamp, these are 0 and "", or left out. A name ends with its unit:
…_seconds (ages, lags and ttls are in seconds of oracle time), …_bytes, …_per_second.
A count has no unit.

In tables and csv, a value is printed as it is if it is printable text, otherwise
quoted as in Go, so that no stored value can send control codes to a terminal. In
json, jsonl and yaml, "value", "old" and "new" hold the bytes in base64; "text"
repeats a value that is printable text. percctl get --raw writes the bytes
themselves.

Names of cells, columns and rows are printed as commands take them: see percctl
help cells.`

const exitCodes = `percctl exits with

  0     ok
  1     failed
  2     wrong usage: the message names the flag or argument and what is allowed
  3     not found: the cell, table, family, transaction, observer or dead letter
  4     a check found a problem, or work is left: violations, locks of live owners
  5     Bigtable or the oracle cannot be reached, or --timeout expired
  6     transactions are not safe on this Bigtable service: percctl conformance
  7     the repairs are made, and violations are left to you: percctl repair apply
  130   interrupted; the message says what was done

The output that comes with exit code 4 is complete.

After an interrupt percctl stops cleanly. A second interrupt ends it at once.`

const cells = `CELL is table/row/family:qualifier, for example

  accounts/bob/bal:usd
  files/src/main.go/meta:size           the row key is src/main.go
  events/user%00%FF7/data:a%2Fb         the qualifier is a/b

Write bytes that are not printable, spaces and percent signs as %XX, and also a
slash in a qualifier. A slash in a row key stands for itself: the first slash ends
the table, the last one ends the row key.

COLUMN (--columns) is family:qualifier. ROW, --prefix, --start and --end are row
keys. They use the same escapes. In a list, write a comma in a name as %2C.

An observed column (percctl notify backfill, percctl observer add) is
table/family:qualifier. The ID of an observer is the one that its workers register.

PRIMARY and START_TS name a transaction: its primary cell, and its start timestamp
as an integer (microseconds since 1970) or, if that is exact enough, as an RFC 3339
time.`
