//go:build wasip1

package tool

import "unsafe"

//go:wasmimport pawl call
//go:noescape
func importCall(op string, request unsafe.Pointer, requestLen uint32) int32

//go:wasmimport pawl read
//go:noescape
func importRead(dst unsafe.Pointer, size uint32) int32

// hostCall is the Host of the module's imports.
func hostCall(op string, request []byte) ([]byte, int) {
	n := importCall(op, unsafe.Pointer(unsafe.SliceData(request)), uint32(len(request)))
	if n <= 0 {
		return nil, int(n)
	}
	answer := make([]byte, n)
	got := importRead(unsafe.Pointer(unsafe.SliceData(answer)), uint32(n))
	return answer[:got], int(got)
}

//go:wasmexport pawl_call
func pawlCall() int32 { return int32(Serve(hostCall)) }

//go:wasmexport pawl_describe
func pawlDescribe() int32 { return int32(DescribeTo(hostCall)) }
