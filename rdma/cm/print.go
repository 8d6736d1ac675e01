// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"log/slog"
	"strings"
)

// printed is what String returns of an ID, or of what stands on one.
func printed(kind string, id *ID, closed bool) string {
	if id == nil || id.noted.Load() == nil {
		return kind + " that was never created"
	}
	text := strings.Replace(id.noted.Load().text, "ID", kind, 1)
	if closed {
		text += ", closed"
	}
	return text
}

// String returns the addresses and the device of the ID as they were after its last call or event: "ID 127.0.0.1:4000
// to 127.0.0.2:5000 on mlx5_0", with ", closed" behind it after Close. It neither calls C nor waits; any goroutine may
// call it at any time.
func (id *ID) String() string { return printed("ID", id, id.life.IsGone()) }

// LogValue is String, for package log/slog.
func (id *ID) LogValue() slog.Value { return slog.StringValue(id.String()) }

// String returns "event channel" and its descriptor, with ", closed" behind it after Close. As with [ID.String], any
// goroutine may call it at any time.
func (ch *EventChannel) String() string {
	switch {
	case ch.number == 0:
		return "event channel that was never created"
	case ch.life.IsGone():
		return ch.name() + ", closed"
	}
	return ch.name()
}

// LogValue is String, for package log/slog.
func (ch *EventChannel) LogValue() slog.Value { return slog.StringValue(ch.String()) }

// String returns the addresses and the device: "connection 127.0.0.1:4000 to 127.0.0.2:5000 on mlx5_0", with ", closed"
// behind it after Close. As with [ID.String], any goroutine may call it at any time.
func (c *Conn) String() string { return printed("connection", c.id, isDone(c.closed)) }

// LogValue is String, for package log/slog.
func (c *Conn) LogValue() slog.Value { return slog.StringValue(c.String()) }

// String returns the address, and the device if the address is of one: "listener 127.0.0.1:5000 on mlx5_0", with
// ", closed" behind it after Close. As with [ID.String], any goroutine may call it at any time.
func (l *Listener) String() string {
	return printed("listener", l.id, l.ctx != nil && l.ctx.Err() != nil)
}

// LogValue is String, for package log/slog.
func (l *Listener) LogValue() slog.Value { return slog.StringValue(l.String()) }
