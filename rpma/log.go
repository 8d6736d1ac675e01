// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"log/slog"
	"sync/atomic"
)

var logger atomic.Pointer[slog.Logger]

// SetLogger sets the package's logger, which receives connections and events at slog.LevelInfo and unexpected events at
// slog.LevelWarn. nil, the initial value, disables logging. Errors are always returned, and operations are not logged.
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
