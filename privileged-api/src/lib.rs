#![no_std]
//! stub
