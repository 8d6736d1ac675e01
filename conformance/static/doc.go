// SPDX-License-Identifier: BSD-2-Clause

// Package static tests static programs: how fast they start, and that they need no files but those of their devices.
package static
