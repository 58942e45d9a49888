package picture

// A Point is one moment of the strip charts. A value is null if it was not known.
type Point struct {
	Time     float64            `json:"t"`        // seconds since 1970
	Locks    int                `json:"locks"`    // locks
	Stranded int                `json:"stranded"` // locks of transactions whose owners are dead
	Pending  int                `json:"pending"`  // pending changes
	Failing  int                `json:"failing"`  // those whose last run failed
	Dead     int                `json:"dead"`     // dead letters
	Lag      float64            `json:"lag"`      // age of the oldest pending change, in seconds
	Oldest   float64            `json:"oldest"`   // age of the oldest lock, in seconds
	Rate     *float64           `json:"rate"`     // timestamps per second of a served oracle
	Clients  map[string]float64 `json:"clients"`  // what the metrics of clients say
}

// keptPoints bounds the strip charts: 20 minutes of a refresh of 2 s.
const keptPoints = 600
