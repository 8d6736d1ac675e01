// SPDX-License-Identifier: BSD-2-Clause

package registration

// Registration returns a value that is equal for all leases of one registration.
func (l *Lease) Registration() any { return l.region }
