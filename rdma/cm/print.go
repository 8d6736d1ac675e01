// SPDX-License-Identifier: BSD-2-Clause

package cm

import "log/slog"

// String returns the ID's addresses and device as of its last call or event, such as "ID 127.0.0.1:4000 to
// 127.0.0.2:5000 on mlx5_0", with the suffix ", closed" after Close. It does not block, and is safe for concurrent use.
func (id *ID) String() string {
	if id == nil || id.cachedName.Load() == nil {
		return "ID that was never created"
	}
	text := id.cachedName.Load().text
	if id.life.IsGone() {
		text += ", closed"
	}
	return text
}

// LogValue returns String, for package log/slog.
func (id *ID) LogValue() slog.Value { return slog.StringValue(id.String()) }

// String returns "event channel" and its descriptor, with the suffix ", closed" after Close. Like [ID.String], it is
// safe for concurrent use.
func (ch *EventChannel) String() string {
	switch {
	case ch.number == 0:
		return "event channel that was never created"
	case ch.life.IsGone():
		return ch.name() + ", closed"
	}
	return ch.name()
}

// LogValue returns String, for package log/slog.
func (ch *EventChannel) LogValue() slog.Value { return slog.StringValue(ch.String()) }
