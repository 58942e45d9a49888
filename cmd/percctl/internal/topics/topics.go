// Package topics is what percctl help says beside the commands.
package topics

import (
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// All returns the help topics.
func All() []cli.Command {
	return []cli.Command{
		topic("environment", "Where settings come from", environment),
		topic("formatting", "Output formats, timestamps and values", formatting),
		topic("exit-codes", "What the exit codes mean", exitCodes),
		topic("cells", "How cells, columns, rows and transactions are written", cells),
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

const environment = `A flag comes before its environment variable, and that before ~/.cbtrc, the
configuration file of cbt (lines of key = value). percctl config view shows each
value and where it came from.

  setting          flag              environment                             ~/.cbtrc
  project          --project         PERCCTL_PROJECT, GOOGLE_CLOUD_PROJECT   project
  instance         --instance        PERCCTL_INSTANCE                        instance
  app profile      --app-profile     PERCCTL_APP_PROFILE                     -
  metadata table   --metadata-table  PERCCTL_METADATA_TABLE                  -
  credentials      -                 PERCCTL_CREDS                           creds
  data endpoint    -                 PERCCTL_DATA_ENDPOINT                   data-endpoint
  admin endpoint   -                 PERCCTL_ADMIN_ENDPOINT                  admin-endpoint
  oracle servers   --oracle          PERCCTL_ORACLE                          -
  their CAs        --oracle-ca       PERCCTL_ORACLE_CA                       -
  own certificate  --oracle-cert     PERCCTL_ORACLE_CERT                     -
  its key          --oracle-key      PERCCTL_ORACLE_KEY                      -

Credentials name the key file of a service account; without one, Google's
application default credentials are used.

The oracle's settings count only where it is in served mode. Without servers, the
leader that its row in Bigtable names is asked; without CAs and certificate, in
plain text.

--embedded needs no setting at all: it is an emulator inside the process, made
anew for each command, with a small deployment to look at.

BIGTABLE_EMULATOR_HOST, the address of an emulator, comes before credentials and
endpoints; any project and instance will do then.

Traces and metrics are exported as OpenTelemetry's variables say, and by default
not at all: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_EXPORTER (otlp, console, none),
OTEL_METRICS_EXPORTER (otlp, prometheus, console, none), and the others of its SDK.
OTEL_EXPORTER_PROMETHEUS_HOST and _PORT say where Prometheus scrapes a service.

NO_COLOR, set to anything, turns colours off; they are only on at a terminal.`

const formatting = `-o, --output chooses how a command prints its data to standard output. Progress,
counts, warnings, plans and errors go to standard error.

  table   for people; it may change, and cuts long values
  json    one value: an object, or an array
  jsonl   one object a line, for lists
  yaml    the same names as json
  csv     for lists, with a line of headings

Lists are printed as they are read, in every format; what was printed of a list
that an error ended is well-formed, and the exit code tells.

Timestamps stand twice: as the integer that commands take (…_ts: microseconds
since 1970, in the order of all transactions), and as RFC 3339 time (…_time).
Age, lag and ttl are in oracle time, in seconds.

Values are printed as they are where they are printable text, and otherwise
quoted as in Go, so that nothing stored can steer a terminal. In json, jsonl and
yaml "value" has the bytes in base64, and "text" repeats them as a string where
they are printable text. percctl get --raw writes the bytes themselves.

Names of cells, columns and rows are printed as commands take them: see percctl
help cells.`

const exitCodes = `  0     ok
  1     failed
  2     wrong usage: the message names the flag or argument and what is allowed
  3     not found: the cell, table, transaction, observer or dead letter
  4     a check found something, or work is left: violations, live locks
  5     Bigtable cannot be reached, or the time is over (--timeout)
  130   interrupted; the message says what was done

After an interrupt percctl stops cleanly; a second one ends it at once.`

const cells = `CELL is table/row/family:qualifier, for example

  accounts/bob/bal:usd
  files/src/main.go/meta:size           the row key is src/main.go
  events/user%00%FF7/data:a%2Fb         the qualifier is a/b

Bytes that are not printable, spaces and percent signs are written %XX, and so is
a slash in a qualifier; a slash in a row key stands for itself: the first slash
ends the table, the last one the row key.

COLUMN (--columns) is family:qualifier, and ROW, --prefix, --start and --end are
row keys, with the same escapes. In a list, a comma in a name is written %2C.

An observed column (percctl notify backfill, percctl observer add) is
table/family:qualifier, and an observer is named by its ID, as its workers register
it.

A transaction is named by PRIMARY, its primary cell, and START_TS, its start
timestamp: an integer (microseconds since 1970) or, where that is exact enough,
an RFC 3339 time.`
