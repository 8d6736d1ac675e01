// Package soft is verbs without hardware: a backend of the generated wrappers, in Go alone. Its devices are in the process, form a
// fabric, and do what the specification of the verbs says: what is not allowed is refused, what fails fails as it would on a device.
//
// [Default] is the fabric that everyone shares, with the devices soft0 and soft1. [New] makes one of its own, with other devices, with
// faults, or with a clock that stands still. A Fabric is a [runtime.Backend]: libibverbs.From{Backend: fabric} lists its devices, and
// all that comes of them is called as an object of C's is.
//
// Registered memory is read and written by address, as a device does it: who registers memory keeps it until the region is gone. The
// race detector does not see these accesses, as it does not see those of a device.
package soft
