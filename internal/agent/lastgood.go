package agent

import (
	"log/slog"
	"maps"
	"path/filepath"

	"github.com/weir-net/weir/internal/agent/statefile"
)

// lastGoodFile keeps the configured values that were valid last, for a start with one that is not.
type lastGoodFile struct {
	file    *statefile.File[map[string]string]
	written map[string]string
}

func openLastGood(dir string, log *slog.Logger) *lastGoodFile {
	return &lastGoodFile{file: statefile.New[map[string]string](filepath.Join(dir, "configuration.json"), log)}
}

// note saves the values when they are others than before.
func (f *lastGoodFile) note(values map[string]string) {
	if f.written != nil && maps.Equal(f.written, values) {
		return
	}
	if f.file.Save(values) == nil {
		f.written = maps.Clone(values)
		if f.written == nil {
			f.written = map[string]string{}
		}
	}
}
