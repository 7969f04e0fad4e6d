// SPDX-License-Identifier: Apache-2.0

package nettest

import (
	"encoding/json"
	"os"
	"testing"
)

// FiguresVariable names the environment variable with the path of a file to which figures are
// appended, a JSON object a line. Nothing is recorded where it is not set.
const FiguresVariable = "WEIR_TEST_FIGURES"

// FigureRow is something that a test has measured.
type FigureRow struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Test  string  `json:"test"`
}

// Figure logs what the test has measured, and records it.
func Figure(t testing.TB, name string, value float64) {
	t.Helper()
	t.Logf("%s: %.4g", name, value)
	path := os.Getenv(FiguresVariable)
	if path == "" {
		return
	}
	text, err := json.Marshal(FigureRow{name, value, t.Name()})
	Must(t, err)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	Must(t, err)
	defer f.Close()
	_, err = f.Write(append(text, '\n')) // one write: other processes append, too
	Must(t, err)
}

// Measuring reports whether figures are recorded: times then count that a test bears longer ones of
// elsewhere.
func Measuring() bool { return os.Getenv(FiguresVariable) != "" }
