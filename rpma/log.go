// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"log/slog"
	"sync/atomic"
)

var logger atomic.Pointer[slog.Logger]

// SetLogger makes the package log: slog.LevelInfo for connections and events, slog.LevelWarn for unexpected events.
// nil, the initial value, disables logging. Errors are returned, never only logged, and operations log nothing. The
// logger selects levels.
//
// C: rpma_log_set_function, rpma_log_set_threshold, rpma_log_get_threshold
func SetLogger(l *slog.Logger) { logger.Store(l) }

func logInfo(text string, args ...any) {
	if l := logger.Load(); l != nil {
		l.Info("rpma: "+text, args...)
	}
}

func logWarn(text string, args ...any) {
	if l := logger.Load(); l != nil {
		l.Warn("rpma: "+text, args...)
	}
}
