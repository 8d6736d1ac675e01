// SPDX-License-Identifier: BSD-2-Clause

package stream

import "strconv"

// UndeliveredError reports data written to a [Conn] that the peer has not acknowledged, or had not read when it closed:
// see [Conn.Close].
type UndeliveredError struct {
	Bytes uint64 // unacknowledged bytes; 0 if only the end of data is missing
	Err   error  // the reason
}

func (e *UndeliveredError) Error() string {
	if e.Bytes == 0 {
		return "the end of data was not acknowledged: " + e.Err.Error()
	}
	return strconv.FormatUint(e.Bytes, 10) + " bytes were not acknowledged: " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *UndeliveredError) Unwrap() error { return e.Err }
