// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"log/slog"
	"sync/atomic"
)

var logger atomic.Pointer[slog.Logger]

// SetLogger has the package log what happens to peers and connections: slog.LevelInfo for connections and events,
// slog.LevelWarn for what a program may not expect. nil, the initial value, means nothing. Errors are returned, never
// only logged, and operations log nothing. Levels are the logger's.
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
