// SPDX-License-Identifier: BSD-2-Clause

package stats

import "errors"

// refused is the error of a connection to a socket whose program has ended: there are no such sockets.
var refused = errors.ErrUnsupported
