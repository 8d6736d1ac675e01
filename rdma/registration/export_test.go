// SPDX-License-Identifier: BSD-2-Clause

package registration

// Registration returns what is the same for all leases that one registration serves.
func (l *Lease) Registration() any { return l.region }
