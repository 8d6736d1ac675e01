// SPDX-License-Identifier: BSD-2-Clause

package stream

import "strconv"

// UndeliveredError reports that a peer has not acknowledged what was written to a [Conn], or closed and did not read
// it: see [Conn.Close].
type UndeliveredError struct {
	Bytes uint64 // that were written and not acknowledged; 0 if only the end of data was not
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
