//! DLPack: a tensor in a capsule, for any library that reads one.
//!
//! The structures are DLPack's own (dlpack.h, version 1). Whoever takes the tensor renames the capsule and calls the
//! deleter when done; a capsule that nobody took has it called by its destructor.

use crate::arena::SharedArena;
use crate::tensor::{CacheTensor, Element};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

pub(crate) const CPU: i32 = 1;

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// What the tensor points to.
struct Context {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _arena: Arc<SharedArena>,
}

fn data_type(element: Element) -> DataType {
    let (code, bits) = match element {
        Element::U8 => (1, 8),
        Element::F16 => (2, 16),
        Element::F32 => (2, 32),
        Element::Bf16 => (4, 16),
        Element::Fp8 => (10, 8),
    };
    DataType { code, bits, lanes: 1 }
}

pub(crate) fn export<'py>(
    py: Python<'py>,
    tensor: &CacheTensor,
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let mut context = Box::new(Context {
        shape: tensor.shape.clone(),
        strides: tensor.strides.clone(),
        _arena: tensor.arena.clone(),
    });
    let inner = Tensor {
        data: tensor.data().cast(),
        device: Device { kind: CPU, id: 0 },
        ndim: context.shape.len() as i32,
        dtype: data_type(tensor.element),
        shape: context.shape.as_mut_ptr(),
        strides: context.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(context).cast();
    if versioned {
        let (version, deleter) = ([1, 1], Some(delete_versioned as _));
        let managed = Box::new(ManagedVersioned { version, context, deleter, flags: 0, tensor: inner });
        capsule(py, Box::into_raw(managed).cast(), VERSIONED)
    } else {
        let managed = Box::new(Managed { tensor: inner, context, deleter: Some(delete) });
        capsule(py, Box::into_raw(managed).cast(), PLAIN)
    }
}

fn capsule<'py>(py: Python<'py>, managed: *mut c_void, name: &'static CStr) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the pointer is not null, the name lives for ever, and the destructor knows what both are.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed, name.as_ptr(), Some(destroy));
        Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| release(managed, name))
    }
}

/// # Safety
/// `managed` is what [`export`] put into a capsule of this name, and nobody uses it any more.
unsafe fn release(managed: *mut c_void, name: &CStr) {
    // SAFETY: as the caller promised.
    unsafe { if name == PLAIN { delete(managed.cast()) } else { delete_versioned(managed.cast()) } }
}

/// A capsule that was taken has another name, and is its taker's.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    for name in [PLAIN, VERSIONED] {
        // SAFETY: Python hands the capsule over; under this name it holds what `export` put there.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
                release(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()), name);
            }
        }
    }
}

/// Needs no interpreter: a consumer may call it on any thread.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: both were made by `Box::into_raw` in `export`, and a deleter is called once.
    unsafe { drop(Box::from_raw(Box::from_raw(managed).context.cast::<Context>())) }
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as above.
    unsafe { drop(Box::from_raw(Box::from_raw(managed).context.cast::<Context>())) }
}
